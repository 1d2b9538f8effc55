//! What tidegate says on the wire: headers, statuses, load reports, protobuf.
