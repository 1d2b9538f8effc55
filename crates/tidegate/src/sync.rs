//! The atomics of the executor's bookkeeping, exchangeable for loom's.
//!
//! Under the feature `loom` the same code runs on atomics that try every interleaving. Threads of
//! loom share one thread of the system, so thread-locals have to be loom's as well.

#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
