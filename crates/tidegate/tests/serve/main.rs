//! The server over real sockets.
//!
//! Every wait is for an event and bounded by [`SOON`], which is far longer than any of them takes:
//! it ends a test that hangs, and decides nothing else.

mod common;
mod drain;
mod limits;
