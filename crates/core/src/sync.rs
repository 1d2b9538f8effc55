//! The atomics of the gates, exchangeable for loom's.
//!
//! Under the feature `loom` the same gates run on atomics that try every interleaving and every
//! value that the memory model allows a load to see. Nothing else of the crate changes.

#[cfg(not(feature = "loom"))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Locks, also after another holder has panicked: what the locks here protect is only ever added
/// to or replaced as a whole, so there is no broken state to be seen.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
