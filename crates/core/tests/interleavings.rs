//! Every interleaving of threads on the gates' atomics.
//!
//! Runs with `cargo xtask test --only interleavings`.
#![cfg(feature = "loom")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Counters are bumped with relaxed additions. However two threads interleave, none is lost, and
/// whoever joins a thread sees all that it added.
#[test]
fn relaxed_additions_are_never_lost() {
    loom::model(|| {
        let counter = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&counter);
        let other = thread::spawn(move || {
            theirs.fetch_add(1, Ordering::Relaxed);
            theirs.fetch_add(2, Ordering::Relaxed);
        });
        let before = counter.fetch_add(4, Ordering::Relaxed);
        assert!([0, 1, 3].contains(&before), "{before} is no prefix of the other's additions");
        other.join().unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 7);
    });
}
