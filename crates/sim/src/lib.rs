//! Virtual worlds.
