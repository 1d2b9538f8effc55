//! Workers that wait for each other before they serve.
//!
//! A proxy says that it serves when one of its workers does, and a predecessor then goes. If
//! another worker fails after that (no descriptors for its runtime, say), all end, and nobody
//! serves there any more. So each makes all that can fail first, and then waits here until all
//! have; connections wait meanwhile in the queues of their sockets. One that fails ends the life of
//! all, and those that wait go with it: the proxy has never served, and its predecessor goes on.

use std::sync::Arc;
use tidegate::life::Life;
use tokio::sync::watch;

/// Where workers meet. All clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Muster {
    missing: Arc<watch::Sender<usize>>,
}

impl Muster {
    /// Of so many.
    pub(crate) fn of(count: usize) -> Self {
        Self { missing: Arc::new(watch::Sender::new(count)) }
    }

    /// Whoever calls this can serve. Returns when all have called it, or that life is over:
    /// whether all have.
    pub(crate) async fn all(&self, life: &Life) -> bool {
        self.missing.send_modify(|missing| *missing = missing.saturating_sub(1));
        let mut missing = self.missing.subscribe();
        tokio::select! {
            biased;
            () = life.draining() => false,
            // The sender is here.
            all = missing.wait_for(|missing| *missing == 0) => all.is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    #[test]
    fn nobody_goes_before_the_last_has_come() {
        let (muster, life) = (Muster::of(3), Life::default());
        let mut context = Context::from_waker(Waker::noop());
        let [mut first, mut second, mut last] =
            [(); 3].map(|()| Box::pin(async { muster.all(&life).await }));
        for _ in 0..2 {
            assert!(first.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut context).is_pending());
        }
        for one in [&mut last, &mut first, &mut second] {
            assert_eq!(one.as_mut().poll(&mut context), Poll::Ready(true));
        }
    }

    #[test]
    fn nobody_waits_for_one_that_has_failed() {
        let (muster, life) = (Muster::of(2), Life::default());
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(muster.all(&life));
        assert!(first.as_mut().poll(&mut context).is_pending());
        life.stop();
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready(false));
    }
}
