//! Whether a connection rests: whether there is nothing of it but its transport.
//!
//! Three see this, all of them in the connection's own task: who looks for unused connections asks
//! for rest, the transport tells hyper the end if that is asked for, and the connection says when
//! rest begins and is over.

use core::future::poll_fn;
use core::task::Poll;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::Notify;

const RESTS: u8 = 0;
const WORKS: u8 = 1;
/// Works, and is to rest if there is nothing to read at the next look.
const TIRED: u8 = 2;
/// Works, and does not rest any more.
const ENDS: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct Rest {
    state: AtomicU8,
    over: Notify,
}

impl Rest {
    /// Whether it rests, as it does from the beginning.
    pub(super) fn is_on(&self) -> bool {
        self.state.load(Relaxed) == RESTS
    }

    /// Has the connection look whether it can rest.
    pub(super) async fn ask(&self) {
        if self.state.load(Relaxed) != WORKS {
            return;
        }
        self.state.store(TIRED, Relaxed);
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(())
        })
        .await;
    }

    /// Has it rest if there is nothing to read when it looks next; whoever calls this polls it.
    /// Returns whether there is any use in that: not if the last such wish was not looked at, nor
    /// if it does not rest any more.
    pub(super) fn tire(&self) -> bool {
        let works = self.state.load(Relaxed) == WORKS;
        if works {
            self.state.store(TIRED, Relaxed);
        }
        works
    }

    /// Whether that was asked for. It is for one look only.
    pub(super) fn is_due(&self) -> bool {
        let due = self.state.load(Relaxed) == TIRED;
        if due {
            self.state.store(WORKS, Relaxed);
        }
        due
    }

    /// From now on it does not rest: it was asked to end, and what has come of a request is to be
    /// answered before.
    pub(super) fn never(&self) {
        self.state.store(ENDS, Relaxed);
    }

    /// It rests.
    pub(super) fn begin(&self) {
        self.state.store(RESTS, Relaxed);
    }

    /// Somebody speaks.
    pub(super) fn over(&self) {
        self.state.store(WORKS, Relaxed);
        self.over.notify_one();
    }

    /// Returns when rest is over, or was since this was called last.
    pub(super) async fn ended(&self) {
        self.over.notified().await;
    }
}
