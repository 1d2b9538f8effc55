//! What a request will cost, before it is known.
//!
//! Quota has to be charged when a request is admitted, but its cost is measured only when it is
//! done. So the cost of the next request is estimated from the last ones of the same customer and
//! method, falling back on the method, then on everything, then on a configured guess.
//!
//! **Robust.** Costs have long tails: 15 ms usually, 10 s now and then. One such request must not
//! make all others look dear. A sample counts as at most [`CLIP`] times the estimate:
//!
//! ```text
//! estimate' = estimate + (min(sample, 8 x estimate) - estimate) / n        n = 1, 2, … 64, 64, …
//! ```
//!
//! One request of a thousand times the usual cost moves the estimate by at most 7/64 of itself,
//! and is forgotten after some hundred more; one in a thousand biases it by less than 1 %. What the
//! estimate gets wrong is corrected when the request is done, so an error shifts a charge in time
//! and never loses it.
//!
//! **Watching where it is worth it.** Once an estimate is steady, one in eight requests updates it,
//! drawn by chance. A request that is off by more than a factor of [`SURPRISE`] makes the next 64
//! of its customer and method count, so a lasting jump is followed: threefold or thousandfold, the
//! estimate is three quarters there within a hundred and fifty requests. The surprise itself counts
//! no more often than any other, or an estimate would lean towards what is unusual. A change too
//! small for a surprise takes eight times as long, and so does one that only the fallbacks see:
//! they mix requests that differ anyway, and would be surprised, and written to, all the time.
//!
//! **Bounded, and on the request path.** The estimates live in a table of fixed size. A key may
//! stand in one of [`WAYS`] places; if they are all taken it has no estimate of its own. Keys that
//! were not used between two calls of [`CostTable::sweep`] make room. Updates are a load and a
//! store: when two threads race, one sample is lost, which an average does not notice. Requests
//! that do not count write nothing, except the first after a sweep, which marks the key as used.
//! Where most requests are surprises, most are written.
//!
//! A slot is two words, and a sweep may free it between a thread's finding it and its writing to
//! it. So an entry bears a tag of its key, and one whose tag is another's counts as nothing known.
//! What such a race can still do: the late write takes away the first samples of the key that came
//! after, which starts again; one time in 256 the tags are the same, and the key starts at the
//! stranger's estimate, which its next dozens of requests correct. A key may come to stand in two
//! slots; only the first is found, and the other is swept as unused.

use crate::customer::CustomerId;
use crate::rng::{Rng, SeededRng, mix};
use crate::sync::{AtomicU64, Ordering};
use crate::units::Cost;
use std::sync::Arc;

/// A sample counts as at most this many times the estimate: high enough that requests which vary
/// by a factor of a few are averaged and not cut, low enough that one outlier is survivable.
pub const CLIP: u64 = 8;
/// The estimate is an average over about this many requests. All that is admitted is reckoned in
/// estimates, so their noise is the admission controller's: with exponential costs 9 %, where a
/// quarter of the samples would leave 18 %. Few enough to follow a release within a second at a
/// hundred requests a second.
const SAMPLES: u64 = 64;
/// Once an estimate is steady, one in this many requests updates it, so that threads do not fight
/// over the cache line of a busy method.
const STRIDE: u64 = 8;
/// A request is a surprise from this factor on, either way: more than what requests of one method
/// usually differ by.
pub const SURPRISE: u64 = 2;
/// So many requests count after a surprise: what an estimate needs to go 64 % of the way.
const EAGER: u64 = SAMPLES;
/// Where every lane's draws begin. They choose what is counted and decide nothing about a request,
/// so all lanes may draw the same.
const SEED: u64 = 1;
/// Places in which a key may stand; they share a cache line.
pub const WAYS: usize = 4;
/// Clipping needs something to multiply: an estimate below a microsecond counts as one.
const FLOOR: u64 = 1_000;

/// A method of a service, as an index that the shell gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MethodId(pub u32);

/// Stands for "whoever" in the keys of the fallbacks.
const ANY: u32 = u32::MAX;
/// The key of the last fallback: whoever, whatever.
const EVERYTHING: Key = key(ANY, ANY);

/// The estimates of all customers and methods.
#[derive(Debug)]
pub struct CostTable {
    slots: Slots,
    guess: Cost,
}

/// The table itself, for whoever holds it: lanes look into it without going through the
/// [`CostTable`], which would be one more line of memory to wait for.
#[derive(Debug, Clone)]
struct Slots {
    sets: Arc<[Set]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Set([Slot; WAYS]);

#[derive(Debug)]
struct Slot {
    /// Customer and method; zero when free.
    key: AtomicU64,
    entry: AtomicU64,
}

impl Slot {
    /// What it knows of `key`, which is nothing if another key left the entry behind.
    #[inline]
    fn read(&self, key: Key) -> Entry {
        let entry = Entry::unpack(self.entry.load(Ordering::Relaxed));
        if entry.tag == key.tag() { entry } else { Entry::nothing(key) }
    }
}

/// What a slot knows, in one word: the estimate, whose it is, how many more requests are to count
/// after a surprise, how many samples it rests on, whether it was used since the last sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    nanos: u64,
    tag: u64,
    eager: u64,
    samples: u64,
    used: bool,
}

impl Entry {
    /// 41 bits of nanoseconds are half an hour of CPU time.
    const NANOS_MAX: u64 = (1 << 41) - 1;

    const fn nothing(key: Key) -> Self {
        Self { nanos: 0, tag: key.tag(), eager: 0, samples: 0, used: false }
    }

    const fn unpack(word: u64) -> Self {
        Self {
            nanos: word >> 23,
            tag: (word >> 15) & 0xFF,
            eager: (word >> 8) & 0x7F,
            samples: (word >> 1) & 0x7F,
            used: word & 1 == 1,
        }
    }

    fn pack(self) -> u64 {
        self.nanos.min(Self::NANOS_MAX) << 23
            | (self.tag & 0xFF) << 15
            | self.eager.min(EAGER) << 8
            | self.samples.min(SAMPLES) << 1
            | u64::from(self.used)
    }

    /// This entry after one more request. Chance decides which ones count, as a fixed turn would
    /// fall in step with requests that come in a pattern and never meet some of them.
    /// Only a `watched` entry can be surprised.
    #[inline]
    fn after(self, sample: u64, drawn: bool, watched: bool) -> Self {
        let steady = self.samples == SAMPLES && self.eager == 0;
        let next = if drawn || !steady { self.blend(sample) } else { self };
        let eager = if watched && steady && self.surprised_by(sample) {
            EAGER
        } else {
            self.eager.saturating_sub(1)
        };
        Self { eager, used: true, ..next }
    }

    fn surprised_by(self, sample: u64) -> bool {
        let far = |high: u64, low: u64| high.max(FLOOR) / SURPRISE > low.max(FLOOR);
        far(sample, self.nanos) || far(self.nanos, sample)
    }

    /// This estimate after one more sample.
    fn blend(self, sample: u64) -> Self {
        let samples = (self.samples + 1).min(SAMPLES);
        let clipped = sample.min(self.nanos.max(FLOOR).saturating_mul(CLIP));
        let nanos = if clipped >= self.nanos {
            self.nanos + (clipped - self.nanos) / samples
        } else {
            self.nanos - (self.nanos - clipped) / samples
        };
        Self { nanos: nanos.min(Self::NANOS_MAX), samples, used: true, ..self }
    }
}

/// A slot's key, and its bits mixed.
#[derive(Debug, Clone, Copy)]
struct Key {
    bits: u64,
    mixed: u64,
}

/// Zero is a free slot, so the pair is inverted and the one pair that this turns into zero, whoever
/// and whatever, has its lowest bit set: it shares a key with method `u32::MAX - 1` of whoever,
/// which no service reaches.
const fn key(customer: u32, method: u32) -> Key {
    let inverted = !((customer as u64) << 32 | method as u64);
    let bits = if inverted == 0 { 1 } else { inverted };
    Key { bits, mixed: mix(bits) }
}

impl Key {
    /// Eight bits of a key that tell its entries from others'. The set is chosen by other bits.
    const fn tag(self) -> u64 {
        self.mixed >> 56
    }
}

impl CostTable {
    /// Room for about `estimates` pairs of customer and method, rounded up to a power of two, and
    /// `guess` where nothing is known.
    pub fn new(estimates: usize, guess: Cost) -> Arc<Self> {
        let sets = estimates.div_ceil(WAYS).clamp(1, 1 << 24).next_power_of_two();
        let slot = || Slot { key: AtomicU64::new(0), entry: AtomicU64::new(0) };
        let sets = (0..sets).map(|_| Set(core::array::from_fn(|_| slot()))).collect();
        Arc::new(Self { slots: Slots { sets }, guess })
    }

    /// What the next request of `customer` to `method` will probably cost.
    #[inline]
    pub fn estimate(&self, customer: CustomerId, method: MethodId) -> Cost {
        self.slots.estimate(customer, method).unwrap_or(self.guess)
    }

    /// A thread's own access, for recording.
    pub fn lane(self: &Arc<Self>) -> CostLane {
        let (slots, guess) = (self.slots.clone(), self.guess);
        CostLane { slots, guess, draws: SeededRng::new(SEED) }
    }

    /// Makes room: forgets every key that was not used since the last sweep. Call it every few
    /// minutes, off the request path.
    pub fn sweep(&self) {
        for slot in self.slots.sets.iter().flat_map(|set| &set.0) {
            let entry = Entry::unpack(slot.entry.load(Ordering::Relaxed));
            if entry.used {
                slot.entry.store(Entry { used: false, ..entry }.pack(), Ordering::Relaxed);
            } else {
                slot.entry.store(0, Ordering::Relaxed);
                // Whoever claims the slot next sees that its entry is gone.
                slot.key.store(0, Ordering::Release);
            }
        }
    }
}

impl Slots {
    /// What is known of a request's cost.
    #[inline]
    fn estimate(&self, customer: CustomerId, method: MethodId) -> Option<Cost> {
        self.known(key(customer.0, method.0)).or_else(|| self.estimate_of_others(method))
    }

    #[cold]
    fn estimate_of_others(&self, method: MethodId) -> Option<Cost> {
        self.known(key(ANY, method.0)).or_else(|| self.known(EVERYTHING))
    }

    #[inline]
    fn known(&self, key: Key) -> Option<Cost> {
        let entry = self.find(key)?.read(key);
        (entry.samples > 0).then(|| Cost::from_nanos(entry.nanos))
    }

    #[inline]
    fn set(&self, key: Key) -> &Set {
        &self.sets[key.mixed as usize & (self.sets.len() - 1)]
    }

    #[inline]
    fn find(&self, key: Key) -> Option<&Slot> {
        self.set(key).0.iter().find(|slot| slot.key.load(Ordering::Relaxed) == key.bits)
    }

    /// A free slot for `key`, or one that another thread has taken for it meanwhile.
    #[cold]
    fn take(&self, key: Key) -> Option<&Slot> {
        self.set(key).0.iter().find(|slot| {
            match slot.key.compare_exchange(0, key.bits, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => true,
                Err(other) => other == key.bits,
            }
        })
    }
}

/// One thread's access to a [`CostTable`].
#[derive(Debug)]
pub struct CostLane {
    slots: Slots,
    guess: Cost,
    draws: SeededRng,
}

impl CostLane {
    /// What the next request of `customer` to `method` will probably cost.
    #[inline]
    pub fn estimate(&self, customer: CustomerId, method: MethodId) -> Cost {
        self.slots.estimate(customer, method).unwrap_or(self.guess)
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self, customer: CustomerId, method: MethodId) -> u64 {
        self.slots.set(key(customer.0, method.0)).0[0].key.load(Ordering::Relaxed)
    }

    /// A request of `customer` to `method` has cost `cost`.
    #[inline]
    pub fn record(&mut self, customer: CustomerId, method: MethodId, cost: Cost) {
        let drawn = self.draws.below(STRIDE) == 0;
        let keys = [key(customer.0, method.0), key(ANY, method.0), EVERYTHING];
        let slots = keys.map(|key| self.slots.find(key));
        let mut known = slots.iter().zip(keys);
        let known = known.all(|(slot, key)| slot.is_some_and(|slot| slot.read(key).samples > 0));
        // Before any slot is taken or written to; nobody asks where all is known.
        let prior = if known { self.guess } else { self.estimate(customer, method) };
        for (place, (key, slot)) in keys.into_iter().zip(slots).enumerate() {
            if let Some(slot) = slot.or_else(|| self.slots.take(key)) {
                let before = slot.read(key);
                let entry = if before.samples == 0 { self.first(prior, key) } else { before };
                let after = entry.after(cost.as_nanos(), drawn, place == 0);
                if after != before {
                    slot.entry.store(after.pack(), Ordering::Relaxed);
                }
            }
        }
    }

    /// An estimate that rests on no request yet starts where the fallbacks stand, and counts that
    /// as one sample: a first request that happens to be the dear one is clipped as well.
    #[cold]
    fn first(&self, prior: Cost, key: Key) -> Entry {
        let known = prior != self.guess;
        let nanos = prior.as_nanos().min(Entry::NANOS_MAX);
        Entry { nanos, samples: known.into(), used: true, ..Entry::nothing(key) }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::rng::{Rng, SeededRng};
    use proptest::prelude::*;

    const GUESS: Cost = Cost::from_millis(1);
    const A: CustomerId = CustomerId(1);
    const B: CustomerId = CustomerId(2);
    const GET: MethodId = MethodId(0);
    const PUT: MethodId = MethodId(1);

    fn millis(cost: Cost) -> f64 {
        cost.as_secs_f64() * 1e3
    }

    #[test]
    fn the_closest_that_is_known_answers() {
        let table = CostTable::new(64, GUESS);
        let mut lane = table.lane();
        assert_eq!(table.estimate(A, GET), GUESS);
        for _ in 0..100 {
            lane.record(A, GET, Cost::from_millis(4));
        }
        for (customer, method) in [(A, GET), (B, GET), (B, PUT)] {
            assert!((millis(table.estimate(customer, method)) - 4.0).abs() < 0.1);
        }
        for _ in 0..200 {
            lane.record(B, GET, Cost::from_millis(40));
        }
        assert!((millis(table.estimate(A, GET)) - 4.0).abs() < 0.1);
        assert!((millis(table.estimate(B, GET)) - 40.0).abs() < 1.0);
    }

    #[test]
    fn no_key_reads_as_a_free_slot() {
        let keys = [key(0, 0), key(0, 1), key(ANY, 0), EVERYTHING, key(0, ANY), key(1, ANY)];
        let keys = keys.map(|key| key.bits);
        assert!(!keys.contains(&0));
        let distinct: std::collections::BTreeSet<_> = keys.into();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn one_blend_by_the_table() {
        for (nanos, samples, sample, expected) in [
            (1_000_000, 15, 1_000_000, 1_000_000),
            (1_000_000, 15, 2_600_000, 1_100_000),
            (1_000_000, 15, 1_000_000_000, 1_437_500),
            (1_000_000, 1, 3_000_000, 2_000_000),
            (1_000_000, 15, 0, 937_500),
            (0, 15, 1_000_000, 500),
        ] {
            let entry = Entry { nanos, samples, ..Entry::nothing(EVERYTHING) }.blend(sample);
            assert_eq!(entry.nanos, expected, "{nanos} and {sample}");
        }
    }

    #[test]
    fn the_rare_dear_request_does_not_spoil_the_rest() {
        let table = CostTable::new(64, GUESS);
        let mut lane = table.lane();
        let mut rng = SeededRng::new(11);
        let (mut sum, mut worst) = (0.0, 0.0_f64);
        for i in 0..100_000 {
            let cost = if rng.below(1_000) == 0 { 10_000 } else { 10 };
            lane.record(A, GET, Cost::from_millis(cost));
            if i > 1_000 {
                let estimate = millis(table.estimate(A, GET));
                sum += estimate;
                worst = worst.max(estimate);
            }
        }
        let mean = sum / 99_000.0;
        assert!((9.9..10.1).contains(&mean), "{mean}");
        assert!(worst < 30.0, "{worst}");
    }

    /// Costs through a lane, once the estimate stands at 1 ms and is steady.
    fn steady(table: &Arc<CostTable>) -> CostLane {
        let mut lane = table.lane();
        for _ in 0..100 {
            lane.record(A, GET, Cost::from_millis(1));
        }
        lane
    }

    #[test]
    fn a_lasting_jump_is_followed_within_a_hundred_and_fifty_requests() {
        for (nanos, least, most) in [
            (3_000_000, 2_250_000, 3_000_000),
            (1_000_000_000, 750_000_000, 1_000_000_000),
            (100_000, 100_000, 500_000),
        ] {
            let table = CostTable::new(64, GUESS);
            let mut lane = steady(&table);
            for _ in 0..150 {
                lane.record(A, GET, Cost::from_nanos(nanos));
            }
            let estimate = table.estimate(A, GET).as_nanos();
            assert!((least..=most).contains(&estimate), "{nanos}: {estimate}");
        }
    }

    /// One in ten costs ten times as much: the surprises do not weigh more than they are.
    #[test]
    fn an_estimate_does_not_lean_towards_surprises() {
        let table = CostTable::new(64, GUESS);
        let mut lane = table.lane();
        let mut rng = SeededRng::new(12);
        let (mut sum, mut costs) = (0.0, 0.0);
        for _ in 0..200_000 {
            let cost = if rng.below(10) == 0 { 10 } else { 1 };
            lane.record(A, GET, Cost::from_millis(cost));
            costs += cost as f64;
            sum += millis(table.estimate(A, GET));
        }
        let bias = sum / costs;
        assert!((0.9..1.1).contains(&bias), "{bias}");
    }

    #[test]
    fn calm_requests_seldom_write() {
        let table = CostTable::new(64, GUESS);
        let mut lane = steady(&table);
        let mut rng = SeededRng::new(13);
        let keys = [key(A.0, GET.0), key(ANY, GET.0), EVERYTHING];
        let words = || {
            keys.map(|key| {
                table.slots.find(key).map_or(0, |slot| slot.entry.load(Ordering::Relaxed))
            })
        };
        let mut writes = [0; 3];
        for _ in 0..8_000 {
            let before = words();
            lane.record(A, GET, Cost::from_micros(800 + rng.below(400)));
            for ((writes, before), after) in writes.iter_mut().zip(before).zip(words()) {
                *writes += u32::from(before != after);
            }
        }
        for writes in writes {
            assert!((900..1_100).contains(&writes), "{writes} of 8,000");
        }
    }

    #[test]
    fn requests_in_a_pattern_are_all_learned() {
        for period in [2, 4, 8, 16] {
            let table = CostTable::new(4_096, GUESS);
            let mut lane = table.lane();
            let round = |lane: &mut CostLane, millis| {
                for method in 0..period {
                    lane.record(A, MethodId(method), Cost::from_millis(millis));
                }
            };
            for _ in 0..100 {
                round(&mut lane, 10);
            }
            // Too close to be a surprise: only the draw brings it in.
            for _ in 0..4_000 {
                round(&mut lane, 17);
            }
            for method in 0..period {
                let estimate = millis(table.estimate(A, MethodId(method)));
                assert!((estimate - 17.0).abs() < 0.1, "{method} of {period}: {estimate}");
            }
        }
    }

    #[test]
    fn what_was_used_between_two_sweeps_stays() {
        for period in [1, 2, 4, 8] {
            let table = CostTable::new(4_096, GUESS);
            let mut lane = table.lane();
            for sweep in 0..10 {
                for method in (0..period).cycle().take(8 * 20) {
                    lane.record(A, MethodId(method), Cost::from_millis(1));
                }
                table.sweep();
                for method in 0..period {
                    let key = key(A.0, method);
                    assert!(table.slots.find(key).is_some(), "{method} of {period}, sweep {sweep}");
                }
            }
            // One use is enough.
            for _ in 0..10 {
                lane.record(A, GET, Cost::from_millis(1));
                table.sweep();
                assert!(table.slots.find(key(A.0, GET.0)).is_some());
            }
            table.sweep();
            assert!(table.slots.find(key(A.0, GET.0)).is_none());
        }
    }

    #[test]
    fn a_full_table_falls_back_and_a_sweep_makes_room() {
        let table = CostTable::new(4, GUESS);
        let mut lane = table.lane();
        for customer in 0..1_000 {
            lane.record(CustomerId(customer), GET, Cost::from_millis(2));
        }
        assert!((millis(table.estimate(CustomerId(999), GET)) - 2.0).abs() < 0.1);
        assert!(table.slots.find(key(999, 0)).is_none());
        table.sweep();
        table.sweep();
        lane.record(CustomerId(999), GET, Cost::from_millis(3));
        assert!(table.slots.find(key(999, 0)).is_some());
    }

    #[test]
    fn one_request_between_sweeps_keeps_a_key() {
        let table = CostTable::new(4, GUESS);
        for _ in 0..100 {
            table.lane().record(A, GET, Cost::from_millis(4));
        }
        for _ in 0..10 {
            table.sweep();
            table.lane().record(A, GET, Cost::from_millis(4));
        }
        assert!((millis(table.estimate(A, GET)) - 4.0).abs() < 0.1);
        table.sweep();
        table.sweep();
        assert_eq!(table.estimate(A, GET), GUESS);
    }

    /// As when a sweep frees a slot while another thread is about to write to it.
    #[test]
    fn nobody_takes_over_what_a_stranger_left_behind() {
        let table = CostTable::new(4, GUESS);
        let mut lane = table.lane();
        for _ in 0..100 {
            lane.record(A, GET, Cost::from_millis(100));
        }
        for slot in &table.slots.sets[0].0 {
            slot.key.store(0, Ordering::Relaxed);
        }
        assert!(table.slots.take(key(B.0, PUT.0)).is_some());
        assert_eq!(table.estimate(B, PUT), GUESS);
        lane.record(B, PUT, Cost::from_millis(2));
        assert_eq!(table.estimate(B, PUT), Cost::from_millis(2));
    }

    #[test]
    fn an_entry_survives_its_word() {
        for nanos in [0, 1, 999, Entry::NANOS_MAX] {
            for (key, eager, samples, used) in [
                (EVERYTHING, EAGER, 0, true),
                (key(7, 7), 0, SAMPLES, false),
                (key(7, 8), 1, 1, true),
            ] {
                let entry = Entry { nanos, eager, samples, used, ..Entry::nothing(key) };
                assert_eq!(Entry::unpack(entry.pack()), entry);
            }
        }
    }

    proptest! {
        #[test]
        fn no_cost_breaks_the_table(
            records in proptest::collection::vec(
                (any::<u32>(), any::<u32>(), any::<u64>()),
                0..200,
            ),
        ) {
            let table = CostTable::new(16, GUESS);
            let mut lane = table.lane();
            for (customer, method, cost) in records {
                prop_assert_ne!(key(customer, method).bits, 0);
                let (customer, method) = (CustomerId(customer), MethodId(method));
                let before = table.estimate(customer, method).as_nanos();
                lane.record(customer, method, Cost::from_nanos(cost));
                let after = table.estimate(customer, method).as_nanos();
                prop_assert!(after <= before.max(FLOOR).saturating_mul(CLIP).max(cost));
                prop_assert!(after <= Entry::NANOS_MAX.max(GUESS.as_nanos()));
            }
        }
    }
}
