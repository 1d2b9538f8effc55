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
//! **By the kind of answer.** A degraded answer costs a part of a full one. In one average with
//! them, a task that goes back to full answers would take each for as cheap as the last degraded
//! ones and let in several times what it can do, until it has learnt otherwise. So degraded answers
//! are a method of their own ([`MethodId::answering`]), and where nothing is known of them the full
//! ones stand for them, step by step of the fallbacks. Never the other way round: who takes a full
//! answer for a degraded one is overrun, who does the opposite refuses some for a moment.
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

/// The bit of a method's number that says that its answers are degraded. No service has half as
/// many methods.
const DEGRADED: u32 = 1 << 31;

impl MethodId {
    /// This method where its answers are full, or degraded.
    #[inline]
    #[must_use]
    pub const fn answering(self, degraded: bool) -> Self {
        if degraded { Self(self.0 | DEGRADED) } else { Self(self.0 & !DEGRADED) }
    }

    /// Whatever method, with answers of this kind.
    const fn whatever(self) -> Self {
        Self(self.0 | !DEGRADED)
    }
}

/// Stands for "whoever" in the keys of the fallbacks.
const ANY: u32 = u32::MAX;

/// What a request tells something about: its customer and method, the method, everything.
#[inline]
const fn keys(customer: CustomerId, method: MethodId) -> [Key; 3] {
    [key(customer.0, method.0), key(ANY, method.0), key(ANY, method.whatever().0)]
}

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

    /// The bits for whose it is, how many samples it rests on, and whether it was used.
    const FULL: u64 = 0xFF << 15 | 0x7F << 1 | 1;

    /// These bits of an entry of `key` that rests on as many as are kept and was used.
    const fn full(key: Key) -> u64 {
        (key.tag() & 0xFF) << 15 | SAMPLES << 1 | 1
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
        // Mostly it is as many as are kept: a constant to divide by, which takes no time.
        let part = |difference: u64| match samples {
            SAMPLES => difference / SAMPLES,
            _ => difference / samples,
        };
        let nanos = if clipped >= self.nanos {
            self.nanos + part(clipped - self.nanos)
        } else {
            self.nanos - part(self.nanos - clipped)
        };
        Self { nanos: nanos.min(Self::NANOS_MAX), samples, used: true, ..self }
    }
}

/// An entry that rests on as many samples as are kept, and was used: what is left to change is the
/// estimate, and how many more requests are to count.
struct Full<'a> {
    slot: &'a Slot,
    word: u64,
}

impl Full<'_> {
    /// As [`Entry::after`], and written down.
    #[inline]
    fn learn(self, sample: u64, drawn: bool, watched: bool) {
        let entry = Entry::unpack(self.word);
        if entry.eager == 0 && !drawn && !(watched && entry.surprised_by(sample)) {
            return;
        }
        let after = entry.after(sample, drawn, watched).pack();
        if after != self.word {
            self.slot.entry.store(after, Ordering::Relaxed);
        }
    }
}

/// A slot's key, and its bits mixed.
#[derive(Debug, Clone, Copy)]
struct Key {
    bits: u64,
    mixed: u64,
}

/// Zero is a free slot, so the pair is inverted and the one pair that this turns into zero, whoever
/// and whatever with degraded answers, has its lowest bit set: it shares a key with those of the
/// method before the last of whoever, which no service reaches.
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
        self.known(key(customer.0, method.0)).or_else(|| self.estimate_by_others(customer, method))
    }

    /// By the fallbacks; of each step, by answers of the kind, then by full ones.
    #[cold]
    fn estimate_by_others(&self, customer: CustomerId, method: MethodId) -> Option<Cost> {
        let full = keys(customer, method.answering(false));
        let steps = keys(customer, method).into_iter().zip(full);
        steps.into_iter().find_map(|(kind, full)| self.known(kind).or_else(|| self.known(full)))
    }

    #[inline]
    fn known(&self, key: Key) -> Option<Cost> {
        let entry = self.find(key)?.read(key);
        (entry.samples > 0).then(|| Cost::from_nanos(entry.nanos))
    }

    /// What is known of `key` if it rests on as many samples as are kept, and was used.
    #[inline]
    fn full(&self, key: Key) -> Option<Full<'_>> {
        let slot = self.find(key)?;
        let word = slot.entry.load(Ordering::Relaxed);
        (word & Entry::FULL == Entry::full(key)).then_some(Full { slot, word })
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
        let sample = cost.as_nanos();
        // Nearly all requests find all three estimates resting on enough of them, and most change
        // nothing, which can be told by a look at three words.
        match keys(customer, method).map(|key| self.slots.full(key)) {
            [Some(own), Some(others), Some(all)] => {
                own.learn(sample, drawn, true);
                others.learn(sample, drawn, false);
                all.learn(sample, drawn, false);
            }
            _ => self.learn(customer, method, cost, drawn),
        }
    }

    #[inline(never)]
    fn learn(&mut self, customer: CustomerId, method: MethodId, cost: Cost, drawn: bool) {
        let [own, others, all] = keys(customer, method);
        let [a, b, c] = [self.slots.find(own), self.slots.find(others), self.slots.find(all)];
        let knows = |slot: Option<&Slot>, key| slot.is_some_and(|slot| slot.read(key).samples > 0);
        // Before any slot is taken or written to; nobody asks where all is known.
        let prior = if knows(a, own) && knows(b, others) && knows(c, all) {
            self.guess
        } else {
            self.slots.estimate(customer, method).unwrap_or(self.guess)
        };
        for (key, slot, watched) in [(own, a, true), (others, b, false), (all, c, false)] {
            if let Some(slot) = slot.or_else(|| self.slots.take(key)) {
                let before = slot.read(key);
                let entry = if before.samples == 0 { self.first(prior, key) } else { before };
                let after = entry.after(cost.as_nanos(), drawn, watched);
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
mod tests;
