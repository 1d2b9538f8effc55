//! How long nothing has moved.

use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use tokio::time::{Sleep, sleep};

/// A timer that runs only while somebody waits.
#[derive(Debug)]
pub(super) struct Stall {
    max: Option<Duration>,
    running: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(super) const fn new(max: Option<Duration>) -> Self {
        Self { max, running: None }
    }

    /// Something moved.
    pub(super) fn moved(&mut self) {
        self.running = None;
    }

    /// Nothing moved. Ready if that has been so for too long.
    pub(super) fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(max) = self.max else { return Poll::Pending };
        self.running.get_or_insert_with(|| Box::pin(sleep(max))).as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_waiting_without_a_pause_counts() {
        let mut stall = Stall::new(Some(Duration::from_secs(10)));
        let mut at = async |seconds, moved| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            if moved {
                stall.moved();
            }
            core::future::poll_fn(|context| Poll::Ready(stall.poll_waiting(context).is_ready()))
                .await
        };
        assert!(!at(0, false).await);
        assert!(!at(9, false).await);
        assert!(!at(9, true).await);
        assert!(!at(9, false).await);
        assert!(at(2, false).await);
        let mut never = Stall::new(None);
        tokio::time::advance(Duration::from_secs(1 << 20)).await;
        let waited = core::future::poll_fn(|context| Poll::Ready(never.poll_waiting(context)));
        assert!(waited.await.is_pending());
    }
}
