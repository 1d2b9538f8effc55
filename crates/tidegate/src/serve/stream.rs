//! Streams of HTTP/2 whose peers take nothing.
//!
//! A peer says how much of each answer it will take. One that says nothing at all, by a window of
//! zero, makes nobody write: hyper asks the body of an answer for a piece or two and then waits for
//! the window, so that neither the transport nor the body can tell how long that has been.
//! Meanwhile the request is in flight, with all that it holds: a place in the gate, a connection to
//! somebody else.
//!
//! But hyper serves each stream by a task, and we spawn it. Whatever is polled on behalf of a
//! stream is polled within that task, and leaves word of whose turn it is:
//!
//! ```text
//! the head of an answer is there, or a piece of it was handed on    the peer's
//! the body was asked, and has nothing yet                           ours
//! ```
//!
//! If it has been the peer's turn for longer than [`Limits::stall_max`](super::Limits), the task is
//! dropped. That resets the stream, and lets go of all that it held.
//!
//! **When it is wrong.** The next turn comes when the peer has taken nearly all of the last piece,
//! and a large one takes a slow peer its time. Those beyond [`LARGE`], and all after them,
//! therefore leave a mark whenever some of them goes out. A peer that takes 16 KiB within the time
//! is never taken for one that takes none; one that is slower still and gets small pieces may be.

use super::stall::Stall;
use crate::executor::Executor;
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use pin_project_lite::pin_project;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pieces that are longer have marks of their own: an allocation is nothing beside so much. At the
/// default of a minute even a modem takes so much in time.
pub(super) const LARGE: usize = 16 * 1024;

/// Whether some of a piece has gone out since somebody looked.
pub(super) type Moved = Arc<AtomicBool>;

/// Who has to do something for an answer to go on.
#[derive(Debug)]
enum Turn {
    Ours,
    Peers(Option<Moved>),
}

thread_local! {
    /// What was last heard of the stream that is polled.
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

/// The stream that is polled waits for us.
pub(super) fn is_ours() {
    TURN.set(Some(Turn::Ours));
}

/// It waits for its peer to take what it has got; `moved` tells whether it does.
pub(super) fn is_the_peers(moved: Option<Moved>) {
    TURN.set(Some(Turn::Peers(moved)));
}

/// Spawns the streams of connections.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    executor: Executor,
    stall_max: Option<Duration>,
}

impl Streams {
    pub(super) const fn new(executor: Executor, stall_max: Option<Duration>) -> Self {
        Self { executor, stall_max }
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let stall = Stall::new(self.stall_max);
        drop(self.executor.spawn(Stream { future: Some(future), turn: Turn::Ours, stall }));
    }
}

pin_project! {
    /// A stream, until it is over or its peer has taken nothing for too long.
    struct Stream<F> {
        #[pin]
        future: Option<F>,
        turn: Turn,
        stall: Stall,
    }
}

impl<F: Future<Output = ()>> Future for Stream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        TURN.set(None);
        if future.poll(context).is_ready() {
            return Poll::Ready(());
        }
        if let Some(turn) = TURN.take() {
            this.stall.moved();
            *this.turn = turn;
        }
        let Turn::Peers(moved) = this.turn else { return Poll::Pending };
        loop {
            ready!(this.stall.poll_waiting(context));
            if !moved.as_ref().is_some_and(|moved| moved.swap(false, Relaxed)) {
                break;
            }
            this.stall.moved();
        }
        this.future.set(None);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    const MAX: Duration = Duration::from_secs(10);

    /// A stream that says what `says` does each second, and how long it is borne.
    async fn borne(mut says: impl FnMut(u64)) -> Duration {
        let start = Instant::now();
        let future = async move {
            for second in 0..100 {
                says(second);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let stall = Stall::new(Some(MAX));
        Stream { future: Some(future), turn: Turn::Ours, stall }.await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_peer_was_to_move_for_too_long() {
        let whole = Duration::from_secs(100);
        assert_eq!(borne(|_| {}).await, whole, "no answer yet");
        assert_eq!(borne(|_| is_ours()).await, whole);
        assert_eq!(borne(|_| is_the_peers(None)).await, whole, "it takes piece after piece");
        let only = |at: u64, turn: fn()| {
            move |second| {
                if second == at {
                    turn();
                }
            }
        };
        assert_eq!(borne(only(5, || is_the_peers(None))).await, Duration::from_secs(15));
        let both = |second| match second {
            5 => is_the_peers(None),
            9 => is_ours(),
            _ => {}
        };
        assert_eq!(borne(both).await, whole);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_piece_may_take_its_time() {
        let moved = Moved::default();
        let slowly = |second| {
            if second == 0 {
                is_the_peers(Some(Arc::clone(&moved)));
            }
            // Some of it goes out until the thirtieth second.
            if second < 30 {
                moved.store(true, Relaxed);
            }
        };
        // Looked at every ten seconds: what moved until 29 is seen at 30, and nothing at 40.
        assert_eq!(borne(slowly).await, Duration::from_secs(40));
    }
}
