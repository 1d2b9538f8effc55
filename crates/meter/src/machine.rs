//! How fast this machine is.
