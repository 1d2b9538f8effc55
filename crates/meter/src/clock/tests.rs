use super::*;
use proptest::prelude::*;

/// Two ticks a nanosecond, so that every whole nanosecond is exact.
const NANOS_X32: u64 = 1 << 31;

/// A thread on a machine where everything happens by decree.
#[derive(Debug)]
struct Fake {
    rate: Rate,
    /// Whether switches are shown.
    rseq: bool,
    ticks: Cell<u64>,
    cpu: Cell<u64>,
    armed: Cell<bool>,
    settled: Cell<u32>,
}

impl Hardware for Fake {
    fn set_up(&self) -> Rate {
        self.rate
    }

    fn ticks(&self) -> u64 {
        assert_ne!(self.rate, Rate::None, "there is no counter to read");
        self.ticks.get()
    }

    fn nanos(&self) -> u64 {
        self.settled.set(self.settled.get() + 1);
        self.cpu.get()
    }

    fn arm(&self) {
        self.armed.set(true);
    }

    fn is_armed(&self) -> bool {
        self.armed.get()
    }
}

/// What may happen to a thread, for so many nanoseconds.
#[derive(Debug, Clone, Copy)]
enum Event {
    Run(u64),
    /// Another thread runs instead.
    Preempted(u64),
    /// It waits in a system call.
    Wait(u64),
    /// The hypervisor runs something else.
    Stolen(u64),
}

impl Fake {
    fn new(rate: Rate, rseq: bool) -> Self {
        // Far from zero, as real ones are.
        let (ticks, cpu) = (Cell::new(1 << 50), Cell::new(1 << 40));
        Self { rate, rseq, ticks, cpu, armed: Cell::new(false), settled: Cell::new(0) }
    }

    fn pass(&self, nanos: u64) {
        self.ticks.set(self.ticks.get() + 2 * nanos);
    }

    fn happen(&self, event: Event) {
        let shows_waits = matches!(self.rate, Rate::Ticks { shows_waits: true, .. });
        match event {
            Event::Run(nanos) => {
                self.pass(nanos);
                self.cpu.set(self.cpu.get() + nanos);
            }
            Event::Preempted(nanos) => {
                self.pass(nanos);
                if self.rseq {
                    self.armed.set(false);
                }
            }
            Event::Wait(nanos) => {
                self.pass(nanos);
                if self.rseq && shows_waits {
                    self.armed.set(false);
                }
            }
            Event::Stolen(nanos) => self.pass(nanos),
        }
    }
}

fn clock(rseq: bool, shows_waits: bool) -> Clock<Fake> {
    Clock::new(Fake::new(Rate::Ticks { nanos_x32: NANOS_X32, shows_waits }, rseq))
}

/// Ends the piece in which `events` happen.
fn piece(clock: &Clock<Fake>, events: &[Event]) -> u64 {
    for &event in events {
        clock.hardware().happen(event);
    }
    clock.lap()
}

/// The clock, what happens before the piece begins, in it, and what it is charged.
type Case<'a> = (Clock<Fake>, &'a [Event], &'a [Event], u64);

#[test]
fn pieces_by_hand() {
    use Event::{Preempted, Run, Stolen, Wait};
    let rseq = || clock(true, true);
    let anchor = || clock(false, false);
    let cases: [Case<'_>; 12] = [
        (rseq(), &[], &[], 0),
        (rseq(), &[], &[Run(5_000)], 5_000),
        (rseq(), &[], &[Run(5_000_000)], 5_000_000),
        (rseq(), &[Run(900_000)], &[Run(200_000)], 200_000),
        (rseq(), &[], &[Run(3_000), Preempted(70_000), Run(2_000)], 5_000),
        (rseq(), &[Preempted(4_000_000)], &[Run(1_000), Wait(800_000), Run(1)], 1_001),
        // Unseen, and not over the age: taken for work.
        (rseq(), &[], &[Run(5_000), Stolen(900_000)], 905_000),
        // Over it: exact.
        (rseq(), &[], &[Run(5_000), Stolen(2_000_000)], 5_000),
        (anchor(), &[], &[Run(3_000), Preempted(70_000), Run(2_000)], 75_000),
        (anchor(), &[], &[Run(3_000), Preempted(3_000_000), Run(2_000)], 5_000),
        // A wait before the piece, as long as may be overlooked: the piece settles, and pays.
        (anchor(), &[Wait(49_999)], &[Run(1_000_000)], 950_001),
        // And a longer one, which is not overlooked.
        (anchor(), &[Wait(50_000)], &[Run(1_000_000)], 1_000_000),
    ];
    for (clock, before, events, charged) in cases {
        clock.begin();
        clock.lap();
        for &event in before {
            clock.hardware().happen(event);
        }
        clock.begin();
        assert_eq!(piece(&clock, events), charged, "{before:?} {events:?}");
    }
}

#[test]
fn an_anchor_lasts_a_millisecond() {
    let clock = clock(true, true);
    clock.begin();
    for _ in 0..10_000 {
        piece(&clock, &[Event::Run(1_000)]);
    }
    // 10 ms of work: the first anchor, and one after each millisecond.
    assert_eq!(clock.hardware().settled.get(), 1 + 10);
}

#[test]
fn without_a_counter_every_reading_is_exact() {
    let clock = Clock::new(Fake::new(Rate::None, false));
    clock.begin();
    let events = [Event::Run(3), Event::Preempted(70_000), Event::Stolen(5), Event::Run(4)];
    assert_eq!(piece(&clock, &events), 7);
    assert_eq!(piece(&clock, &[]), 0);
    assert_eq!(clock.hardware().settled.get(), 3);
}

#[test]
fn a_rate_that_makes_no_sense_is_no_rate() {
    for nanos_x32 in [0, 1, u64::MAX] {
        let rate = Rate::Ticks { nanos_x32, shows_waits: true };
        let clock = Clock::new(Fake::new(rate, true));
        clock.begin();
        assert_eq!(piece(&clock, &[Event::Run(3), Event::Stolen(9)]), 3);
    }
}

#[test]
fn a_counter_that_jumps_is_not_believed() {
    let clock = clock(true, true);
    clock.begin();
    let fake = clock.hardware();
    fake.happen(Event::Run(100));
    fake.ticks.set(5);
    assert_eq!(clock.lap(), 100);
    fake.happen(Event::Run(100));
    fake.ticks.set(u64::MAX);
    assert_eq!(clock.lap(), 100);
    fake.ticks.set(0);
    fake.cpu.set(0);
    // Even the exact clock is back at its beginning, as after a fork.
    assert_eq!(clock.lap(), 0);
}

#[test]
fn a_step_back_within_an_age_is_worth_nothing() {
    let clock = clock(true, true);
    clock.begin();
    let fake = clock.hardware();
    assert_eq!(piece(&clock, &[Event::Run(100)]), 100);
    // Another core whose counter is behind, but not behind the anchor.
    fake.ticks.set(fake.ticks.get() - 50);
    assert_eq!(clock.lap(), 0);
}

fn events(unseen: bool) -> impl Strategy<Value = Vec<Vec<Event>>> {
    // From nothing to three times the age, evenly in the logarithm.
    let nanos = || (0_u32..22, any::<u64>()).prop_map(|(bits, dice)| dice & ((1 << bits) - 1));
    let seen = prop_oneof![
        3 => nanos().prop_map(Event::Run),
        1 => nanos().prop_map(Event::Preempted),
    ];
    let all = prop_oneof![
        3 => nanos().prop_map(Event::Run),
        1 => nanos().prop_map(Event::Preempted),
        1 => nanos().prop_map(Event::Wait),
        1 => nanos().prop_map(Event::Stolen),
    ];
    let event = if unseen { all.boxed() } else { seen.boxed() };
    prop::collection::vec(prop::collection::vec(event, 0..6), 0..40)
}

proptest! {
    /// Where every switch is shown, every piece is exact.
    #[test]
    fn what_is_seen_is_exact(pieces in events(false)) {
        let clock = clock(true, true);
        clock.begin();
        for events in pieces {
            let before = clock.hardware().cpu.get();
            let charged = piece(&clock, &events);
            prop_assert_eq!(charged, clock.hardware().cpu.get() - before);
        }
    }

    /// Whatever happens: never more than has passed, never more than an age above the truth, and
    /// below it by no more than what was unseen between the anchor and the beginning, hence an age.
    #[test]
    fn what_is_not_seen_is_bounded(
        pieces in events(true),
        (rseq, shows_waits) in prop::sample::select(&[(true, true), (true, false), (false, false)]),
        gaps: bool,
    ) {
        let clock = clock(rseq, shows_waits);
        clock.begin();
        for (n, events) in pieces.iter().enumerate() {
            let gap = gaps && n % 2 == 1;
            if gap {
                clock.begin();
            }
            let (cpu, ticks) = (clock.hardware().cpu.get(), clock.hardware().ticks.get());
            let charged = piece(&clock, events);
            let cpu = clock.hardware().cpu.get() - cpu;
            let wall = (clock.hardware().ticks.get() - ticks) / 2;
            prop_assert!(charged <= wall, "{charged} of {wall} passed");
            prop_assert!(charged <= cpu + AGE_MAX, "{charged} for {cpu}");
            let below = if gap && !shows_waits { GAP_AGE_MAX } else { AGE_MAX };
            prop_assert!(charged + below >= cpu, "{charged} for {cpu}");
        }
    }
}
