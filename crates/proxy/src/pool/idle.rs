//! Connections that wait for a request, the last one used on top.

use core::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Idle<S> {
    /// Since when each is idle; the oldest first.
    waiting: Vec<(Instant, S)>,
}

impl<S> Default for Idle<S> {
    fn default() -> Self {
        Self { waiting: Vec::new() }
    }
}

impl<S> Idle<S> {
    /// One is free from now on. Those that have waited for too long go.
    pub(super) fn put(&mut self, sender: S, now: Instant, idle_max: Duration) {
        self.sweep(now, idle_max);
        self.waiting.push((now, sender));
    }

    /// Those that have waited for too long go. Returns whether any are left.
    pub(super) fn sweep(&mut self, now: Instant, idle_max: Duration) -> bool {
        let old =
            self.waiting.iter().take_while(|(since, _)| is_old(*since, now, idle_max)).count();
        self.waiting.drain(..old);
        !self.waiting.is_empty()
    }

    /// The last one that was used and is fit.
    pub(super) fn take(
        &mut self,
        now: Instant,
        idle_max: Duration,
        is_fit: impl Fn(&S) -> bool,
    ) -> Option<S> {
        let fresh = |since: &Instant| !is_old(*since, now, idle_max);
        let found =
            self.waiting.iter().rposition(|(since, sender)| fresh(since) && is_fit(sender))?;
        Some(self.waiting.remove(found).1)
    }
}

fn is_old(since: Instant, now: Instant, idle_max: Duration) -> bool {
    now.saturating_duration_since(since) >= idle_max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_that_is_fit_and_not_old() {
        let (mut idle, start) = (Idle::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        let max = Duration::from_secs(4);
        for (secs, sender) in [(0, 'a'), (1, 'b'), (2, 'c'), (3, 'd')] {
            idle.put(sender, at(secs), max);
        }
        assert_eq!(idle.take(at(3), max, |_| true), Some('d'));
        assert_eq!(idle.take(at(3), max, |sender| *sender == 'a'), Some('a'));
        assert_eq!(idle.take(at(5), max, |sender| *sender == 'b'), None);
        idle.put('e', at(5), max);
        assert_eq!(idle.waiting.len(), 2);
        assert_eq!(idle.take(at(5), max, |_| true), Some('e'));
        assert_eq!(idle.take(at(5), max, |_| true), Some('c'));
        assert_eq!(idle.take(at(5), max, |_| true), None);
    }
}
