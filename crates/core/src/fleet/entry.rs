//! One pair of task and customer.
//!
//! There are millions of them, so each has 80 bytes: rates are [`Packed`], and all that has few
//! bits shares a number. What is rare, such as claims of those who joined, is not here.

use super::allocate::Levels;
use super::ledger::part;
use super::packed::Packed;
use crate::units::{Ratio, Timestamp};
use core::time::Duration;

/// What one task does for one customer, and what it was granted for that.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// The slot of the task.
    pub(super) task: u32,
    /// When there was demand last, in [`WANTED_UNIT`].
    wanted_at: u32,
    /// From the top: the number of the last grant, 0 if the task has to be told whatever it is; the
    /// report that last mentioned it, by its last eight bits; and flags.
    marks: u64,
    used: Packed,
    demand: Packed,
    /// What else the task may hold, from before the last grant.
    before: Packed,
    /// The last grant.
    granted: Packed,
}

/// Bits of [`Entry::marks`] below the number.
const NUMBER_SHIFT: u32 = 16;
/// The last number of a grant. A million a second last for nine years.
pub(super) const NUMBER_MAX: u64 = u64::MAX >> NUMBER_SHIFT;
const STAMP_SHIFT: u32 = 8;
/// The last grant took everything back.
const REVOKED: u64 = 1;
/// What it may hold from before does not shrink in silence: it is a safe share already, or perhaps
/// one of another leader.
const FIRM: u64 = 2;
/// The task says that it holds something from before it joined; how much, its customer knows.
pub(super) const CLAIMS: u64 = 4;

/// A sixteenth of a second, nearly: fine beside the time after which somebody is idle, and the end
/// of 32 bits is nine years away.
const WANTED_UNIT: u64 = 1 << 26;

impl Entry {
    pub(super) fn new(task: usize, stamp: u8, now: Timestamp) -> Self {
        let mut entry = Self {
            task: task as u32,
            wanted_at: 0,
            marks: u64::from(stamp) << STAMP_SHIFT,
            used: Packed::ZERO,
            demand: Packed::ZERO,
            before: Packed::ZERO,
            granted: Packed::ZERO,
        };
        entry.want(now);
        entry
    }

    /// The number of the last grant; 0 if the task has to be told, whatever it is.
    pub(super) const fn number(&self) -> u64 {
        self.marks >> NUMBER_SHIFT
    }

    pub(super) const fn set_number(&mut self, number: u64) {
        self.marks = (number << NUMBER_SHIFT) | (self.marks & ((1 << NUMBER_SHIFT) - 1));
    }

    /// The report that last mentioned it.
    pub(super) const fn stamp(&self) -> u8 {
        (self.marks >> STAMP_SHIFT) as u8
    }

    pub(super) const fn set_stamp(&mut self, stamp: u8) {
        self.marks = (self.marks & !(0xff << STAMP_SHIFT)) | ((stamp as u64) << STAMP_SHIFT);
    }

    pub(super) const fn has(&self, flag: u64) -> bool {
        self.marks & flag != 0
    }

    pub(super) const fn set(&mut self, flag: u64, to: bool) {
        self.marks = if to { self.marks | flag } else { self.marks & !flag };
    }

    /// The last grant took everything back.
    pub(super) const fn is_revoked(&self) -> bool {
        self.has(REVOKED)
    }

    pub(super) fn used(&self) -> Levels {
        self.used.get()
    }

    pub(super) fn demand(&self) -> Levels {
        self.demand.get()
    }

    pub(super) fn wants_nothing(&self) -> bool {
        self.demand == Packed::ZERO
    }

    /// The last grant.
    pub(super) fn granted(&self) -> Levels {
        self.granted.get()
    }

    /// How long there has been no demand.
    pub(super) fn idle(&self, now: Timestamp) -> Duration {
        let wanted = Timestamp::from_nanos(u64::from(self.wanted_at).saturating_mul(WANTED_UNIT));
        now.since(wanted)
    }

    /// There is demand now.
    pub(super) fn want(&mut self, now: Timestamp) {
        let units = now.as_nanos().div_ceil(WANTED_UNIT);
        self.wanted_at = u32::try_from(units).unwrap_or(u32::MAX);
    }

    /// What a report says of it, or of several lines the first. Returns whether that is news.
    pub(super) fn note(&mut self, used: Levels, demand: Levels, now: Timestamp) -> bool {
        let (used, demand) = (Packed::floor(used), Packed::floor(demand));
        if demand != Packed::ZERO {
            self.want(now);
        }
        let news = (self.used, self.demand) != (used, demand);
        (self.used, self.demand) = (used, demand);
        news
    }

    /// The task does nothing for the customer. Returns whether that is news.
    pub(super) fn rest(&mut self) -> bool {
        let news = (self.used, self.demand) != (Packed::ZERO, Packed::ZERO);
        (self.used, self.demand) = (Packed::ZERO, Packed::ZERO);
        news
    }

    /// Whether nothing is on its way to the task, so that it may be given a new grant.
    pub(super) const fn is_settled(&self, acked: u64) -> bool {
        self.number() <= acked
    }

    /// Whether the task is known to hold the last grant and nothing else.
    pub(super) const fn is_acked(&self, acked: u64) -> bool {
        self.number() != 0 && self.is_settled(acked)
    }

    /// The most that the task may be using, but for what it claims.
    pub(super) fn known(&self, acked: u64) -> Packed {
        if self.is_acked(acked) { self.granted } else { self.before.higher(self.granted) }
    }

    /// The stream broke: the task has to be told anew, and may hold any of what it was told.
    pub(super) fn untell(&mut self, acked: u64) {
        if self.is_acked(acked) {
            self.before = Packed::ZERO;
            self.set(FIRM, false);
        }
        self.set_number(0);
    }

    /// The lease ended: the task fell back to the safe share of whatever it held.
    pub(super) fn lapse(&mut self, acked: u64, safe: Ratio) {
        self.untell(acked);
        let share = |held: Packed| Packed::ceil(part(safe, held.get()));
        self.granted = if self.has(FIRM) {
            self.before.higher(share(self.granted))
        } else {
            share(self.before.higher(self.granted))
        };
        self.before = self.granted;
        self.set(FIRM, true);
        self.rest();
    }

    /// The task says that it holds `has`, of another leader. That is news until it acknowledged a
    /// grant of this stream, and counts.
    pub(super) fn learn(&mut self, has: Levels, acked: u64) {
        if self.is_acked(acked) {
            return;
        }
        let has = Packed::ceil(has);
        let more = self.before.higher(has);
        if more != self.before {
            self.set(FIRM, true);
        }
        self.before = more;
        if self.number() == 0 {
            self.granted = self.granted.higher(has);
        }
    }

    /// The next grant, which has to be as [`grantable`] says.
    pub(super) fn grant(&mut self, levels: Levels, number: u64, acked: u64, revoked: bool) {
        if self.is_acked(acked) {
            self.before = self.granted;
            self.set(FIRM, false);
        } else {
            self.before = self.before.higher(self.granted);
        }
        self.granted = Packed::floor(levels);
        self.set_number(number);
        self.set(REVOKED, revoked);
    }
}

/// The most of `levels` that a grant can say.
pub(super) fn grantable(levels: Levels) -> Levels {
    Packed::floor(levels).get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_80_bytes() {
        assert_eq!(size_of::<Entry>(), 80);
    }

    #[test]
    fn marks_do_not_touch_each_other() {
        let mut entry = Entry::new(7, 255, Timestamp::from_secs(3));
        assert_eq!((entry.number(), entry.stamp(), entry.is_revoked()), (0, 255, false));
        entry.grant([1; 4], NUMBER_MAX, 0, true);
        assert_eq!((entry.number(), entry.stamp(), entry.is_revoked()), (NUMBER_MAX, 255, true));
        entry.set_stamp(3);
        entry.set(FIRM, true);
        entry.set(REVOKED, false);
        assert_eq!((entry.number(), entry.stamp(), entry.is_revoked()), (NUMBER_MAX, 3, false));
        assert!(entry.has(FIRM) && !entry.has(CLAIMS));
        entry.set_number(0);
        assert_eq!((entry.number(), entry.stamp(), entry.has(FIRM)), (0, 3, true));
        // To the next sixteenth of a second.
        assert_eq!(entry.idle(Timestamp::from_secs(3)), Duration::ZERO);
        assert!(entry.idle(Timestamp::from_secs(11)) > Duration::from_millis(7_930));
        entry.want(Timestamp::MAX);
        assert_eq!(entry.idle(Timestamp::from_secs(1)), Duration::ZERO);
    }
}
