//! Whether a connection is used.
//!
//! Requests leave a mark, and whoever wants to know looks for it now and then: so the clock is read
//! by the one who looks, and not by every request.
//!
//! A request is over for its handler when the last piece of its answer was handed on, and for its
//! caller when that piece has arrived. HTTP/2 may keep it in between for as long as the peer lets
//! nothing through, and tells nobody. So that piece leaves marks of its own: while it is there the
//! peer is *owed* it, and whenever some of it goes out the connection is used.
//!
//! Between two requests of HTTP/1 a connection may be idle for long, but the headers of a request
//! may not take long once they have begun. So bytes leave a mark as well, and each request takes
//! away those of its own: if there is one while there is no request, the next has begun. What came
//! together with the last of a body is not seen by that; it is when the connection rests.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    busy: AtomicU64,
    /// Whether the peer has yet to take what was written: an answer may be over for whoever made it
    /// long before it is for the peer.
    held_up: AtomicBool,
    /// Last pieces of answers that have not gone out in full.
    owed: AtomicU64,
    ended: AtomicBool,
    /// Whether there was a request, ever.
    asked: AtomicBool,
    /// Whether something came after the last one.
    heard: AtomicBool,
}

impl Activity {
    pub(super) fn begin(&self) {
        self.asked.store(true, Relaxed);
        self.heard.store(false, Relaxed);
        self.busy.fetch_add(1, Relaxed);
    }

    /// Something has come.
    pub(super) fn hear(&self) {
        self.heard.store(true, Relaxed);
    }

    /// Whether a request has begun to come on a connection of HTTP/1 that has none.
    pub(super) fn has_begun(&self) -> bool {
        self.heard.load(Relaxed) && self.busy.load(Relaxed) == 0
    }

    /// Whether there was a request, ever.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
        self.heard.store(false, Relaxed);
        self.busy.fetch_sub(1, Relaxed);
    }

    /// An answer has ended for whoever made it, and its last piece has yet to go out.
    pub(super) fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
        self.end();
    }

    /// Some of such a piece has gone out.
    pub(super) fn paid(&self) {
        self.ended.store(true, Relaxed);
    }

    /// All of it has, or never will.
    pub(super) fn settled(&self) {
        self.ended.store(true, Relaxed);
        self.owed.fetch_sub(1, Relaxed);
    }

    /// Whether there is a request, or an answer that the peer has yet to take.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0 || self.held_up.load(Relaxed) || self.is_owing()
    }

    /// Whether answers that were given have yet to go out.
    pub(super) fn is_owing(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }

    /// Something could not be written.
    pub(super) fn hold_up(&self) {
        self.held_up.store(true, Relaxed);
    }

    /// All was written. What never had to wait leaves no mark, be it an answer or HTTP/2's pings.
    pub(super) fn flushed(&self) {
        if self.held_up.load(Relaxed) {
            self.ended.store(true, Relaxed);
            self.held_up.store(false, Relaxed);
        }
    }

    /// Whether there is a request or the peer has yet to take what was written, or one of these has
    /// ended or some of an answer that is owed has gone out since somebody asked last. What is owed
    /// and does not move is no use: a peer that takes nothing could keep a connection by it.
    pub(super) fn is_used(&self) -> bool {
        let ended = self.ended.swap(false, Relaxed);
        ended || self.busy.load(Relaxed) > 0 || self.held_up.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_used_while_there_are_requests_and_once_after() {
        let activity = Activity::default();
        assert!(!activity.is_used());
        activity.begin();
        activity.begin();
        assert!(activity.is_used());
        activity.end();
        assert!(activity.is_used() && activity.is_used());
        activity.end();
        assert!(activity.is_used());
        assert!(!activity.is_used());
    }

    #[test]
    fn bytes_between_requests_are_the_beginning_of_one() {
        let activity = Activity::default();
        assert!(!activity.has_begun() && !activity.was_asked());
        activity.hear();
        assert!(activity.has_begun() && !activity.was_asked());
        activity.begin();
        assert!(!activity.has_begun() && activity.was_asked());
        activity.hear();
        assert!(!activity.has_begun(), "of its body");
        activity.end();
        assert!(!activity.has_begun() && activity.was_asked());
        activity.hear();
        assert!(activity.has_begun());
    }

    #[test]
    fn what_is_owed_is_use_whenever_it_moves() {
        let activity = Activity::default();
        activity.begin();
        assert!(!activity.is_owing());
        activity.owe();
        assert!(activity.is_owing());
        assert!(activity.is_used(), "the request has ended");
        assert!(!activity.is_used() && activity.is_owing(), "nothing moves");
        activity.paid();
        assert!(activity.is_used() && !activity.is_used() && activity.is_owing());
        activity.settled();
        assert!(activity.is_used() && !activity.is_used() && !activity.is_owing());
    }

    #[test]
    fn it_is_used_while_answers_are_held_up_and_once_after() {
        let activity = Activity::default();
        activity.flushed();
        assert!(!activity.is_used());
        activity.hold_up();
        assert!(activity.is_used() && activity.is_used());
        activity.flushed();
        activity.flushed();
        assert!(activity.is_used());
        assert!(!activity.is_used());
    }
}
