//! How much may be in flight, by criticality.
//!
//! A share of what comes is no limit on how much comes. So each plan says how much may be in flight
//! for one more of a level to be let in; higher levels have higher limits, so that where a level is
//! refused, every lower one is. Within a level, customers who are over their quota lately have a
//! limit of their own, no higher than that of the others. What is let in takes room, what is done
//! gives it back: between two looks of the controller the limits hold by themselves.
//!
//! Counting every request in one place would cost what the gate saves everywhere else. So a thread
//! keeps some of the room as a **lease**: what one of its requests gives back the next one takes,
//! and the shared count is needed only when the lease is used up, or has grown beyond a [`PARTS`]th
//! of the thread's share and beyond one request. What a thread has leased and does not use is
//! missing for others until the next plan; then all leases end, as the controller counts what is in
//! flight, not what was leased.
//!
//! A request is let in while there is any room at all, so a limit may be overdrawn by one request
//! or lease per thread. When no plan comes for a while (the controller's thread is held up), an old
//! one is no reason to refuse: then shares alone decide, until the next.
//!
//! **The order of ranks** is exact on each thread: limits rise with rank, a lease is not used below
//! the rank that it was taken for, and what comes back into it is looked at anew. Across threads a
//! lease may upset it: until the next plan a thread can let in a lower rank by what it has leased
//! while another refuses a higher one, for no more than one lease, which is a [`PARTS`]th of the
//! thread's share of the limit or one request, and once. Limits of a new plan are written so that
//! none of its moments upsets it either: those that fall from the lowest rank up, then those that
//! rise from the highest down. Whoever was refused by a new limit that fell then finds all lower
//! ones fallen, and whoever got in by one that rose finds all higher ones risen.

use crate::criticality::Criticality;
use crate::quota::Keeps;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cost, Timestamp};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;
/// A lease is this part of a thread's share of the limit: what is leased and not used is missing.
const PARTS: u64 = 64;
/// Plans come every few milliseconds; one that is this old is not being followed up.
const VALID: Duration = Duration::from_millis(100);

/// No limit for anyone.
const UNLIMITED: i64 = i64::MAX;
/// No limit for some, beside others who have one: no lease of theirs may be without limit, as
/// others use what is left of it.
const UNREACHED: i64 = UNLIMITED - 1;
/// Costs beyond this, some thirty years, count as this, so that sums do not overflow.
const MOST: u64 = 1 << 60;
/// Levels, and in each of them first those who are over, then those who keep within.
const RANKS: usize = 2 * LEVELS;
/// The rank of a lease that has to be looked at before anyone may use it.
const NOBODY: u64 = RANKS as u64;
/// No plan has this number: theirs have more free bits.
const NO_PLAN: u64 = !0xff;

/// Who asks for room: limits rise with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u8);

impl Rank {
    #[inline]
    pub(super) const fn new(criticality: Criticality, keeps: Keeps) -> Self {
        Self(2 * criticality as u8 + keeps as u8)
    }

    #[inline]
    const fn index(self) -> usize {
        self.0 as usize % RANKS
    }
}

#[derive(Debug)]
// Limits, which all threads read, on one cache line, what they write on the next.
#[repr(C, align(64))]
pub(super) struct Room {
    /// By rank, in nanoseconds of cost, two's complement; [`UNLIMITED`] is no limit.
    most: [AtomicU64; RANKS],
    /// What came in less what went out since the plan, as far as threads have told.
    used: AtomicU64,
    valid_until: AtomicU64,
    /// How much a thread may take or keep at once.
    part: AtomicU64,
    lanes: AtomicU64,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            most: core::array::from_fn(|_| AtomicU64::new(UNLIMITED as u64)),
            used: AtomicU64::new(0),
            valid_until: AtomicU64::new(u64::MAX),
            part: AtomicU64::new(0),
            lanes: AtomicU64::new(0),
        }
    }

    /// At most `limit` may be in flight, and `over` for those who are over; `inflight` is.
    pub(super) fn publish(
        &self,
        limit: &[Cost; LEVELS],
        over: &[Cost; LEVELS],
        inflight: Cost,
        now: Timestamp,
    ) {
        let inflight = signed(inflight);
        let limited = over.iter().chain(limit).filter(|&&limit| limit < Cost::MAX).max();
        let most: [i64; RANKS] =
            core::array::from_fn(|rank| match [over, limit][rank % 2][rank / 2] {
                _ if limited.is_none() => UNLIMITED,
                Cost::MAX => UNREACHED,
                limit => signed(limit) - inflight,
            });
        let words = self.most.iter().zip(most);
        for (word, most) in words.clone() {
            if most <= word.load(Ordering::Relaxed) as i64 {
                word.store(most as u64, Ordering::Release);
            }
        }
        for (word, most) in words.rev() {
            if most > word.load(Ordering::Relaxed) as i64 {
                word.store(most as u64, Ordering::Release);
            }
        }
        // Of a limit, if there is any: a part of none would leave nothing to those who have one.
        let highest = limited.map_or(u64::MAX, |limit| limit.as_nanos());
        let lanes = self.lanes.load(Ordering::Relaxed).max(1);
        self.part.store(highest / lanes / PARTS, Ordering::Relaxed);
        self.valid_until.store((now + VALID).as_nanos(), Ordering::Relaxed);
        // Last: whoever sees it begin anew sees the limits that it counts from.
        self.used.store(0, Ordering::Release);
    }

    /// What is left below the limit of `rank`, for a thread that has leased `mine`.
    #[inline]
    fn available(&self, rank: Rank, mine: i64) -> (i64, i64) {
        let used = self.used.load(Ordering::Acquire) as i64;
        let most = self.most[rank.index()].load(Ordering::Acquire) as i64;
        (most.saturating_sub(used.saturating_sub(mine)), most)
    }

    pub(super) fn lease(&self) -> Lease {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        Lease::none(NO_PLAN, 0)
    }

    /// A thread ends; what it has leased is there for others.
    pub(super) fn lane_gone(&self, lease: &Lease, plan: u64) {
        self.lanes.fetch_sub(1, Ordering::Relaxed);
        if lease.plan == plan && lease.keep != UNLIMITED {
            self.used.fetch_sub(lease.left as u64, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn touch(&self, criticality: Criticality) -> u64 {
        let most = self.most[2 * criticality.index()].load(Ordering::Relaxed);
        most ^ self.used.load(Ordering::Relaxed)
    }

    /// Reads from each line.
    #[inline]
    pub(super) fn touch_all(&self) -> u64 {
        self.touch(Criticality::Sheddable)
    }

    /// `cost` is no longer in flight, and no thread keeps it.
    pub(super) fn give_back(&self, cost: Cost) {
        self.used.fetch_sub(signed(cost) as u64, Ordering::Relaxed);
    }
}

/// What one thread may let in without asking.
#[derive(Debug)]
pub(super) struct Lease {
    /// Never negative, and never more than it may grow to.
    left: i64,
    /// It grows no further than this.
    keep: i64,
    /// The plan it belongs to, a number of which the lowest bits are free.
    plan: u64,
    /// The plan, and in its free bits the rank that the lease was taken for and may not be used
    /// below.
    from: u64,
    /// What becomes of `from` when room is given back.
    then_from: u64,
}

impl Lease {
    /// Nothing is left; whoever gives back may keep so much.
    const fn none(plan: u64, keep: i64) -> Self {
        let from = plan | NOBODY;
        Self { left: 0, keep, plan, from, then_from: from }
    }

    #[inline]
    pub(super) const fn touch(&self) -> u64 {
        self.left as u64
    }

    /// What is left of a lease from below a limit: what there was without one was never counted as
    /// used.
    #[inline]
    const fn mine(&self, plan: u64) -> i64 {
        if plan == self.plan && self.keep != UNLIMITED { self.left } else { 0 }
    }

    /// Takes room for `cost`; whether there was any.
    #[inline]
    pub(super) fn take(
        &mut self,
        room: &Room,
        plan: u64,
        rank: Rank,
        cost: Cost,
        now: Timestamp,
    ) -> bool {
        // Numbers of two plans are further apart than ranks, and a rank below wraps.
        if (plan | u64::from(rank.0)).wrapping_sub(self.from) < RANKS as u64
            && let Some(left) = (self.left as u64).checked_sub(cost.as_nanos())
        {
            self.left = left as i64;
            return true;
        }
        // In a surge most requests are refused here, and in calm most take again what their thread
        // was given back: both are looked at before anything is called.
        let mine = self.mine(plan);
        let (available, most) = room.available(rank, mine);
        if available <= 0 {
            if now.as_nanos() <= room.valid_until.load(Ordering::Relaxed) {
                return false;
            }
        } else if let Some(left) = (mine as u64).checked_sub(cost.as_nanos())
            && most != UNLIMITED
            && plan == self.plan
        {
            (self.left, self.from) = (left as i64, plan | u64::from(rank.0));
            return true;
        }
        self.renew(room, plan, rank, signed(cost), now)
    }

    /// What was let in for `cost` is done: whoever comes next on this thread may have its room.
    #[inline]
    pub(super) fn give_back(&mut self, room: &Room, plan: u64, cost: Cost) {
        if plan == self.plan && cost.as_nanos() <= (self.keep - self.left) as u64 {
            self.left += cost.as_nanos() as i64;
            // Others may have filled up what a lower level had been let in by.
            self.from = self.then_from;
            return;
        }
        self.give_back_anew(room, plan, cost);
    }

    #[cold]
    fn give_back_anew(&mut self, room: &Room, plan: u64, cost: Cost) {
        if plan != self.plan {
            // Whoever lets nothing in has no use for more than a part.
            *self = Self::none(plan, room.part.load(Ordering::Relaxed) as i64);
        }
        self.from = self.then_from;
        self.left = self.left.saturating_add(signed(cost));
        if self.left > self.keep {
            self.return_excess(room);
        }
    }

    fn return_excess(&mut self, room: &Room) {
        let excess = self.left - self.keep / 2;
        room.used.fetch_sub(excess as u64, Ordering::Relaxed);
        self.left -= excess;
    }

    #[cold]
    fn renew(&mut self, room: &Room, plan: u64, rank: Rank, cost: i64, now: Timestamp) -> bool {
        let mine = self.mine(plan);
        let (available, most) = room.available(rank, mine);
        let from = plan | u64::from(rank.0);
        if most == UNLIMITED {
            // Nobody else can fill it up.
            let left = UNLIMITED / 2;
            *self = Self { left, keep: UNLIMITED, plan, from, then_from: from };
            return true;
        }
        if now.as_nanos() > room.valid_until.load(Ordering::Relaxed) {
            return true;
        }
        if available <= 0 {
            return false;
        }
        let then_from = plan | NOBODY;
        let part = room.part.load(Ordering::Relaxed) as i64;
        let lease = part.min(available - cost).max(0);
        let lease = lease - lease % cost.max(1);
        let taken = cost + lease - mine;
        let before = room.used.fetch_add(taken as u64, Ordering::Relaxed) as i64;
        if before.saturating_sub(mine) >= most {
            room.used.fetch_sub(taken as u64, Ordering::Relaxed);
            return false;
        }
        *self = Self { left: lease, keep: cost.max(part), plan, from, then_from };
        true
    }
}

fn signed(cost: Cost) -> i64 {
    cost.as_nanos().min(MOST) as i64
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable};
    use Keeps::{Over, Within};

    const NOW: Timestamp = Timestamp::from_secs(1);
    const PLAN: u64 = 1 << 31;

    fn cost(nanos: u64) -> Cost {
        Cost::from_nanos(nanos)
    }

    fn admitted(lease: &mut Lease, room: &Room, plan: u64, level: Criticality, each: u64) -> u64 {
        let rank = Rank::new(level, Within);
        (0..1_000).take_while(|_| lease.take(room, plan, rank, cost(each), NOW)).count() as u64
    }

    fn limits(most: [u64; LEVELS], inflight: u64) -> Room {
        let room = Room::new();
        room.publish(&most.map(cost), &most.map(cost), cost(inflight), NOW);
        room
    }

    #[test]
    fn what_threads_write_is_not_beside_what_they_read() {
        assert_eq!(core::mem::offset_of!(Room, most), 0);
        assert_eq!(core::mem::offset_of!(Room, used), 64);
        assert_eq!((align_of::<Room>(), size_of::<Room>()), (64, 128));
    }

    #[test]
    fn as_much_gets_in_as_there_is_room_for() {
        let room = Room::new();
        let mut lease = room.lease();
        assert_eq!(admitted(&mut lease, &room, 0, Sheddable, 7), 1_000, "without a plan");
        // Each, in flight already, and how many get in below a limit of 100.
        let table = [
            (1, 0, 100),
            (30, 0, 4),
            (100, 0, 1),
            (250, 0, 1),
            (30, 70, 1),
            (1, 99, 1),
            (1, 100, 0),
        ];
        for (plan, (each, inflight, expected)) in (PLAN..).step_by(16).zip(table) {
            room.publish(&[cost(100); 4], &[cost(100); 4], cost(inflight), NOW);
            let got = admitted(&mut lease, &room, plan, Critical, each);
            assert_eq!(got, expected, "{each} each beside {inflight}");
        }
    }

    #[test]
    fn what_is_done_makes_room_for_as_much() {
        for (limit, inflight) in [(100, 0), (100, 100), (100, 130), (100_000, 99_990)] {
            let room = limits([limit; 4], inflight);
            let mut lease = room.lease();
            let mut more = admitted(&mut lease, &room, PLAN, Critical, 10);
            assert_eq!(more, limit.saturating_sub(inflight).div_ceil(10));
            // Of those that came before the plan and those that came since, all go.
            let mut over = inflight.saturating_sub(limit);
            for _ in 0..50 {
                lease.give_back(&room, PLAN, cost(10));
                more = admitted(&mut lease, &room, PLAN, Critical, 10);
                assert_eq!(more, u64::from(over == 0), "{limit}, {inflight}");
                over = over.saturating_sub(10);
            }
        }
    }

    #[test]
    fn higher_levels_have_more_room_and_lower_ones_none_of_it() {
        let room = limits([10, 20, 100, 200], 0);
        let mut lease = room.lease();
        assert_eq!(admitted(&mut lease, &room, PLAN, Sheddable, 1), 10);
        assert!(lease.take(&room, PLAN, Rank::new(Critical, Within), cost(1), NOW));
        assert!(!lease.take(&room, PLAN, Rank::new(Sheddable, Within), cost(1), NOW));
        assert_eq!(admitted(&mut lease, &room, PLAN, Critical, 1), 89);
        assert_eq!(admitted(&mut lease, &room, PLAN, CriticalPlus, 1), 100);
        // 190 of 200 have to be done before the lowest gets in again.
        for done in 1..=191 {
            lease.give_back(&room, PLAN, cost(1));
            let taken = lease.take(&room, PLAN, Rank::new(Sheddable, Within), cost(1), NOW);
            assert_eq!(taken, done == 191, "after {done}");
        }
    }

    #[test]
    fn customers_who_are_over_leave_room_for_the_others_of_their_level() {
        let room = Room::new();
        let mut lease = room.lease();
        room.publish(&[10, 20, 100, 200].map(cost), &[10, 20, 40, 200].map(cost), cost(0), NOW);
        let mut let_in = |level, keeps| {
            let rank = Rank::new(level, keeps);
            (0..1_000).take_while(|_| lease.take(&room, PLAN, rank, cost(1), NOW)).count()
        };
        assert_eq!(let_in(Critical, Over), 40);
        assert_eq!(let_in(Sheddable, Within), 0);
        assert_eq!(let_in(Critical, Within), 60);
        assert_eq!(let_in(Critical, Over), 0);
        assert_eq!(let_in(CriticalPlus, Over), 100);
    }

    #[test]
    fn two_threads_share_one_limit() {
        let room = Room::new();
        let mut leases = [room.lease(), room.lease()];
        room.publish(&[cost(1_000); 4], &[cost(1_000); 4], cost(0), NOW);
        let mut total = 0;
        for i in 0..4_000 {
            total += u64::from(leases[i % 2].take(
                &room,
                PLAN,
                Rank::new(Critical, Within),
                cost(1),
                NOW,
            ));
        }
        // Leases of 7 and the request that takes them: the last one is overdrawn.
        assert_eq!(total, 1_000);
        // One thread finishes what both have let in: all but its lease is there for the other.
        for _ in 0..1_000 {
            leases[0].give_back(&room, PLAN, cost(1));
        }
        let other = admitted(&mut leases[1], &room, PLAN, Critical, 1);
        assert!((993..=1_000).contains(&other), "{other}");
    }

    #[test]
    fn room_that_comes_back_is_for_whoever_the_limit_lets_in() {
        let room = limits([100, 100, 200, 200], 0);
        let mut leases = [room.lease(), room.lease()];
        assert!(leases[0].take(&room, PLAN, Rank::new(Sheddable, Within), cost(100), NOW));
        assert!(leases[1].take(&room, PLAN, Rank::new(Critical, Within), cost(100), NOW));
        assert!(!leases[1].take(&room, PLAN, Rank::new(Critical, Within), cost(100), NOW));
        // 200 are in flight, then 100: none of it is for the lowest.
        leases[0].give_back(&room, PLAN, cost(100));
        assert!(!leases[0].take(&room, PLAN, Rank::new(Sheddable, Within), cost(100), NOW));
        assert!(leases[0].take(&room, PLAN, Rank::new(Critical, Within), cost(100), NOW));
    }

    #[test]
    fn threads_that_only_finish_requests_keep_no_room() {
        let room = limits([4_600; 4], 4_000);
        let mut acceptor = room.lease();
        let mut workers = [room.lease(), room.lease(), room.lease(), room.lease()];
        for worker in &mut workers {
            worker.give_back(&room, PLAN, cost(1_000));
        }
        assert_eq!(admitted(&mut acceptor, &room, PLAN, Critical, 1_000), 5);
    }

    #[test]
    fn what_comes_back_without_a_lane_is_room_for_all() {
        let room = limits([100; 4], 100);
        let mut lease = room.lease();
        assert!(!lease.take(&room, PLAN, Rank::new(Critical, Within), cost(1), NOW));
        room.give_back(cost(5));
        assert_eq!(admitted(&mut lease, &room, PLAN, Critical, 1), 5);
    }

    /// Some levels are limited and others are not: who has no limit takes none of the room of those
    /// who have, and no limit of one is a way in for another.
    #[test]
    fn no_limit_for_some_is_none_for_others() {
        let limit = [cost(100), cost(100), Cost::MAX, Cost::MAX];
        for first in [Critical, Sheddable] {
            let room = Room::new();
            let mut lease = room.lease();
            room.publish(&limit, &limit, cost(0), NOW);
            assert!(lease.take(&room, PLAN, Rank::new(first, Within), cost(1), NOW));
            let more = admitted(&mut lease, &room, PLAN, Sheddable, 1);
            assert_eq!(more, 99, "after one of {first}");
            assert_eq!(admitted(&mut lease, &room, PLAN, Critical, 1), 1_000);
            assert_eq!(admitted(&mut lease, &room, PLAN, Sheddable, 1), 0);
            let mut other = room.lease();
            assert_eq!(admitted(&mut other, &room, PLAN, Sheddable, 1), 0);
            assert_eq!(admitted(&mut other, &room, PLAN, Critical, 1), 1_000);
        }
    }

    /// The order of levels across threads is upset by what one of them has leased, and by no more.
    #[test]
    fn a_lower_level_gets_in_by_its_threads_lease_and_no_further() {
        let room = Room::new();
        let mut leases = [room.lease(), room.lease()];
        room.publish(&[1_280; 4].map(cost), &[1_280; 4].map(cost), cost(0), NOW);
        // The first takes one and a lease: 1,280 over two threads and 64 parts.
        let [low, high] = &mut leases;
        assert!(low.take(&room, PLAN, Rank::new(Sheddable, Within), cost(1), NOW));
        assert_eq!(admitted(high, &room, PLAN, CriticalPlus, 1), 1_000);
        assert_eq!(admitted(high, &room, PLAN, CriticalPlus, 1), 1_280 - 1_000 - 11);
        assert!(!high.take(&room, PLAN, Rank::new(CriticalPlus, Within), cost(1), NOW));
        // Ten of the lowest get in beside a refusal of the highest, and none after them,
        assert_eq!(admitted(low, &room, PLAN, Sheddable, 1), 10);
        // not even as they are done: what comes back is looked at anew.
        low.give_back(&room, PLAN, cost(1));
        assert!(low.take(&room, PLAN, Rank::new(CriticalPlus, Within), cost(1), NOW));
        assert!(!low.take(&room, PLAN, Rank::new(Sheddable, Within), cost(1), NOW));
    }

    #[test]
    fn an_old_plan_is_no_reason_to_refuse() {
        let room = limits([0; 4], 0);
        let mut lease = room.lease();
        assert!(!lease.take(&room, PLAN, Rank::new(Critical, Within), cost(1), NOW + VALID));
        assert!(lease.take(
            &room,
            PLAN,
            Rank::new(Critical, Within),
            cost(1),
            NOW + VALID + Duration::from_nanos(1)
        ));
    }

    #[test]
    fn costs_beyond_reason_do_not_overflow() {
        let room = limits([u64::MAX - 1; 4], u64::MAX);
        let mut lease = room.lease();
        for _ in 0..20 {
            lease.take(&room, PLAN, Rank::new(Critical, Within), Cost::MAX, NOW);
            lease.give_back(&room, PLAN, Cost::MAX);
            lease.give_back(&room, PLAN, Cost::MAX);
            room.give_back(Cost::MAX);
            lease.take(&room, PLAN, Rank::new(Sheddable, Within), Cost::MAX, NOW);
        }
    }
}
