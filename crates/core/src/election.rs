//! Which of several servers leads, by a key in a store with leases (etcd).
//!
//! Whoever creates the key leads; the key goes with the creator's lease, and the lease ends when it
//! was not renewed for `ttl`. The store's count of changes at which the key came to be is the
//! **revision** of the reign: a later leader has a higher one, so whoever has heard of it can tell
//! an earlier one off.
//!
//! ```text
//! look ── vacant ──► grant a lease ──► claim the key ──► leads until `sent` + 3/4 ttl,
//!   ▲                                     │ taken         `sent` of the last renewal that
//!   └──────── every ttl/3, when woken ────┘               the store has answered
//! ```
//!
//! **Never two at once.** A leader counts from when it *sent* a renewal; the store counts the whole
//! `ttl` from when that arrived, which is later. So by its own clock a leader is over before the
//! store gives the key away, however long answers take or the process is held up, as long as
//! whoever acts for it reads the clock after it has read what it answers to. Clocks need not agree;
//! one may run slower than the store's by a quarter.
//!
//! A leader whose time is up is **suspended**: it answers nobody. If the store then renews its
//! lease after all, the lease never ended and nobody has led in between: it goes on with the same
//! revision once it has seen that the key is still its own.
//!
//! **Watches only wake.** What a watch tells may be old, or never come. It makes the elector look
//! sooner, and what it goes by is what it sees then.
//!
//! **When it is wrong.** A store that is out of reach has no leader: those who are led go on with
//! what they have. A key that somebody deletes by hand ends a reign when the leader looks next, up
//! to ttl/3 later; until then there may be two, of which the later has the higher revision. A clock
//! that stands still while the machine is suspended is not noticed before the next look.

use crate::units::Timestamp;
use core::time::Duration;

/// A leader holds for so many quarters of a lease: what is left covers a clock that is slow.
const HOLD_QUARTERS: u32 = 3;
/// Renewals in a lease: after a failed one there is time for three more before the reign is over.
const RENEWALS: u32 = 6;
/// Looks in a lease. Watches tell sooner; this is for those that were lost.
const LOOKS: u32 = 3;
/// After a question that failed, so many of these pauses fit into a lease.
const PAUSES: u32 = 12;

/// A lease, as the store numbers it.
pub type LeaseId = i64;

/// Who has the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What it calls itself.
    pub name: String,
    /// When the key came to be.
    pub revision: u64,
    /// With which lease the key goes.
    pub lease: LeaseId,
}

/// What to ask the store. Looks, grants and claims are asked one at a time, and so are renewals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Who has the key: [`Elector::seen`].
    Look,
    /// For a lease: [`Elector::granted`].
    Grant,
    /// To create the key with this lease if nobody has it: [`Elector::seen`], either way.
    Claim(LeaseId),
    /// To renew the lease: [`Elector::renewed`].
    Renew(LeaseId),
    /// To end the lease. Nobody waits for an answer.
    Revoke(LeaseId),
}

/// What a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role<'a> {
    /// It leads, and must not act as the leader from `until` on.
    Leads {
        /// Of its reign.
        revision: u64,
        /// By its own clock.
        until: Timestamp,
    },
    /// It led, and may find that it still does. Until then it answers nobody.
    Suspended {
        /// Of its reign.
        revision: u64,
    },
    /// Somebody else leads, or nobody of whom it knows.
    Follows(Option<&'a Holder>),
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    id: LeaseId,
    /// When the last renewal was sent that was answered.
    renewed: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Reign {
    revision: u64,
    /// The key was seen since the lease was in doubt.
    sure: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Watches,
    Stands,
    Resigned,
}

/// One server's part in the election.
#[derive(Debug, Clone)]
pub struct Elector {
    ttl: Duration,
    part: Part,
    lease: Option<Lease>,
    reign: Option<Reign>,
    holder: Option<Holder>,
    /// Nobody had the key when it looked last.
    vacant: bool,
    /// It was woken while an answer was on its way, which may be from before.
    woken: bool,
    /// Nothing while a look, grant or claim is on its way.
    look_due: Option<Timestamp>,
    /// Nothing while a renewal is on its way.
    renew_due: Option<Timestamp>,
    revoke: Option<LeaseId>,
}

impl Elector {
    /// One that takes part from `now` on, with leases of `ttl`. It claims nothing before it is
    /// [eligible](Self::set_eligible).
    pub const fn new(ttl: Duration, now: Timestamp) -> Self {
        Self {
            ttl,
            part: Part::Watches,
            lease: None,
            reign: None,
            holder: None,
            vacant: false,
            woken: false,
            look_due: Some(now),
            renew_due: None,
            revoke: None,
        }
    }

    /// How long a leader leads after a renewal was sent.
    pub fn hold(&self) -> Duration {
        self.ttl * HOLD_QUARTERS / 4
    }

    /// How long to wait for an answer: as long as until the next renewal.
    pub fn patience(&self) -> Duration {
        self.ttl / RENEWALS
    }

    /// It knows what it would lead.
    pub fn set_eligible(&mut self) {
        if self.part == Part::Watches {
            self.part = Part::Stands;
        }
    }

    /// Something may have changed: looks at once.
    pub fn wake(&mut self, now: Timestamp) {
        self.woken = self.look_due.is_none();
        self.look_due = self.look_due.and(Some(now));
    }

    /// Leads no more, and takes no part any more.
    pub fn resign(&mut self) {
        self.part = Part::Resigned;
        self.give_up();
    }

    /// What to ask now, if anything; to be called until there is nothing.
    pub fn next(&mut self, now: Timestamp) -> Option<Ask> {
        if let Some(lease) = self.revoke.take() {
            return Some(Ask::Revoke(lease));
        }
        if self.part == Part::Resigned {
            return None;
        }
        let is_due = |due: Option<Timestamp>| due.is_some_and(|due| now >= due);
        if let Some(lease) = self.lease
            && is_due(self.renew_due)
        {
            self.renew_due = None;
            return Some(Ask::Renew(lease.id));
        }
        let look_due = self.look_due?;
        let ask = match self.lease {
            None if self.vacant && self.part == Part::Stands => Ask::Grant,
            // One that may have ended would be refused.
            Some(lease) if self.vacant && now < lease.renewed + self.hold() => Ask::Claim(lease.id),
            _ if now >= look_due => Ask::Look,
            _ => return None,
        };
        self.look_due = None;
        Some(ask)
    }

    /// When to ask [`next`](Self::next) and [`role`](Self::role) again, if nothing is answered.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let renew = self.lease.and(self.renew_due);
        let look = self.look_due.filter(|_| self.part != Part::Resigned);
        let over = self.reign.and(self.lease).map(|lease| lease.renewed + self.hold());
        [renew, look, over].into_iter().flatten().min()
    }

    /// Who has the key, after a look or a claim.
    pub fn seen(&mut self, holder: Option<Holder>, now: Timestamp) {
        let woken = core::mem::take(&mut self.woken);
        self.look_due = Some(if woken { now } else { now + self.ttl / LOOKS });
        if self.part == Part::Resigned {
            return;
        }
        self.vacant = holder.is_none();
        let mine = self.lease.zip(holder.as_ref()).filter(|(lease, by)| lease.id == by.lease);
        if let Some((lease, by)) = mine {
            let in_time = now < lease.renewed + self.hold();
            let sure = in_time || self.reign.is_some_and(|reign| reign.sure);
            self.reign = Some(Reign { revision: by.revision, sure });
        } else if self.reign.is_some() || holder.is_some() {
            self.give_up();
        }
        self.holder = holder;
    }

    /// The store has given a lease; the question was sent at `sent`.
    pub fn granted(&mut self, id: LeaseId, sent: Timestamp, now: Timestamp) {
        self.look_due = Some(now);
        if self.part == Part::Resigned {
            self.revoke = Some(id);
            return;
        }
        self.lease = Some(Lease { id, renewed: sent });
        self.renew_due = Some(now + self.ttl / RENEWALS);
    }

    /// The store was asked at `sent` to renew a lease: whether there still is one.
    pub fn renewed(&mut self, id: LeaseId, there: bool, sent: Timestamp, now: Timestamp) {
        let hold = self.hold();
        let Some(lease) = self.lease.as_mut().filter(|lease| lease.id == id) else { return };
        self.renew_due = Some(now + self.ttl / RENEWALS);
        let in_time = now < lease.renewed + hold;
        lease.renewed = lease.renewed.max(sent);
        if !there {
            (self.lease, self.reign, self.holder, self.vacant) = (None, None, None, false);
            self.wake(now);
        } else if let Some(reign) = self.reign.as_mut().filter(|_| !in_time) {
            reign.sure = false;
            self.wake(now);
        }
    }

    /// A look, grant or claim was not answered, and nobody knows what has become of it.
    pub fn unanswered(&mut self, now: Timestamp) {
        (self.vacant, self.woken) = (false, false);
        self.look_due = Some(now + self.ttl / PAUSES);
    }

    /// A renewal was not answered.
    pub fn not_renewed(&mut self, id: LeaseId, now: Timestamp) {
        if self.lease.is_some_and(|lease| lease.id == id) {
            self.renew_due = Some(now + self.ttl / PAUSES);
        }
    }

    /// What this server is now.
    pub fn role(&self, now: Timestamp) -> Role<'_> {
        let Some((reign, lease)) = self.reign.zip(self.lease) else {
            return Role::Follows(self.holder.as_ref());
        };
        let (revision, until) = (reign.revision, lease.renewed + self.hold());
        if reign.sure && now < until {
            Role::Leads { revision, until }
        } else {
            Role::Suspended { revision }
        }
    }

    fn give_up(&mut self) {
        (self.reign, self.holder) = (None, None);
        if let Some(lease) = self.lease.take() {
            self.revoke = Some(lease.id);
        }
    }
}

#[cfg(test)]
mod tests;
