//! What this machine offers to meter with, found out once.
//!
//! The time-stamp counter is trusted where the kernel trusts it, that is where it is the kernel's
//! own clock source; where it runs at one rate whatever the processor does (`constant_tsc` and
//! `nonstop_tsc`, together the *invariant* counter); and where this process may read it. Its rate
//! is measured against the monotonic clock:
//!
//! ```text
//! nanos a tick = (clock at end - clock at start) / (ticks at end - ticks at start)
//! ```
//!
//! over [`RATE_WAIT`], each end being the best of some readings: the counter before and after the
//! clock, as close together as it gets. An end is off by 30 ns or so, hence the rate by 0.003 %.
//!
//! Whether rseq shows waits is found out by waiting once.
//!
//! When a file cannot be read, as in some sandboxes, the answer is no. When the counter's rate
//! changes later (a virtual machine that moves), costs are wrong by that ratio within a millisecond
//! and right over longer: the kernel's clock, which is what anchors are, has the same trouble and
//! deals with it.

use crate::meter::Kind;
use crate::sys::{cpu, rseq::Watch, tsc};
use std::time::{Duration, Instant};

/// Long enough for a rate to five digits, short enough not to be noticed at start.
const RATE_WAIT: Duration = Duration::from_millis(2);

/// One of five is not interrupted, on the busiest machine.
const END_READINGS: usize = 5;

/// Findings about this machine. See [`Meter::probe`](crate::Meter::probe).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
// Findings, not states: each is a yes or a no of its own.
#[allow(clippy::struct_excessive_bools)]
pub struct Probe {
    /// What the kernel keeps time by. Anything but `tsc` says that the counter is not to be
    /// trusted.
    pub clock_source: Option<String>,
    /// Whether the counter runs at one rate at all times.
    pub tsc_is_invariant: bool,
    /// Whether this process may read it.
    pub tsc_is_readable: bool,
    /// The counter's rate in Hz. None where it is not trusted.
    pub tsc_hertz: Option<f64>,
    /// Whether the kernel knows the `struct rseq` of the thread that looked.
    pub rseq_is_registered: bool,
    /// Whether rseq also shows waits in system calls, as it does up to kernel 6.18.
    pub rseq_shows_waits: bool,
    /// Whether there is a clock of a thread's CPU time.
    pub has_thread_clock: bool,
    pub(crate) nanos_x32: Option<u64>,
}

impl Probe {
    pub(crate) fn of_this_machine() -> Self {
        let read = |path| std::fs::read_to_string(path).ok();
        let clock_source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .map(|name| name.trim().to_owned());
        let tsc_is_invariant = read("/proc/cpuinfo").is_some_and(|info| has_invariant_tsc(&info));
        let tsc_is_readable = tsc::may_be_read();
        let trusted = clock_source.as_deref() == Some("tsc") && tsc_is_invariant && tsc_is_readable;
        let watch = Watch::here();
        if let Some(watch) = watch {
            watch.arm();
        }
        // The wait for the one is the wait for the other.
        let nanos_a_tick = if trusted { rate() } else { None };
        if !trusted {
            std::thread::sleep(Duration::from_micros(1));
        }
        Self {
            clock_source,
            tsc_is_invariant,
            tsc_is_readable,
            tsc_hertz: nanos_a_tick.map(|nanos| 1e9 / nanos),
            rseq_is_registered: watch.is_some(),
            rseq_shows_waits: watch.is_some_and(|watch| !watch.is_armed()),
            has_thread_clock: cpu::thread().is_some(),
            nanos_x32: nanos_a_tick.map(|nanos| (nanos * 2_f64.powi(32)) as u64),
        }
    }

    /// The best way to meter here.
    pub fn best(&self) -> Kind {
        if !self.has_thread_clock {
            Kind::Wall
        } else if self.nanos_x32.is_none() {
            Kind::ThreadClock
        } else if !self.rseq_is_registered {
            Kind::Anchor
        } else {
            Kind::Rseq
        }
    }
}

/// Whether every processor in `/proc/cpuinfo` has both flags.
fn has_invariant_tsc(cpuinfo: &str) -> bool {
    let is_flags = |line: &&str| line.split(':').next().is_some_and(|key| key.trim() == "flags");
    let has = |line: &str, flag: &str| line.split_whitespace().any(|word| word == flag);
    let mut flags = cpuinfo.lines().filter(is_flags).peekable();
    flags.peek().is_some()
        && flags.all(|line| has(line, "constant_tsc") && has(line, "nonstop_tsc"))
}

/// Nanoseconds a tick, measured. None if that makes no sense.
fn rate() -> Option<f64> {
    let (start, start_ticks) = end();
    std::thread::sleep(RATE_WAIT);
    let (stop, stop_ticks) = end();
    let nanos = stop.duration_since(start).as_nanos() as f64;
    let ticks = stop_ticks.checked_sub(start_ticks)?;
    // 10 GHz to 100 MHz: there is no other processor of this kind.
    Some(nanos / ticks as f64).filter(|nanos| (0.1..=10.0).contains(nanos))
}

/// The clock and the counter at one moment, as nearly as can be.
fn end() -> (Instant, u64) {
    let readings = (0..END_READINGS).map(|_| {
        let before = tsc::read();
        let clock = Instant::now();
        let apart = tsc::read().wrapping_sub(before);
        (apart, clock, before.wrapping_add(apart / 2))
    });
    let best = readings.min_by_key(|&(apart, ..)| apart);
    best.map_or_else(|| (Instant::now(), 0), |(_, clock, ticks)| (clock, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processors_need_both_flags() {
        let both = "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc\nbugs\t\t: none\n";
        let one = "processor\t: 1\nflags\t\t: fpu constant_tsc\n";
        let alike = "flags\t\t: constant_tsc_not nonstop_tscs\n";
        let elsewhere = "vmx flags\t: constant_tsc nonstop_tsc\n";
        for (cpuinfo, expected) in [
            (both.to_owned(), true),
            (both.repeat(2), true),
            (format!("{both}{one}"), false),
            (alike.to_owned(), false),
            (elsewhere.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(has_invariant_tsc(&cpuinfo), expected, "{cpuinfo:?}");
        }
    }

    #[test]
    fn the_best_is_what_everything_it_needs_is_there_for() {
        let full = Probe {
            clock_source: Some("tsc".to_owned()),
            tsc_is_invariant: true,
            tsc_is_readable: true,
            tsc_hertz: Some(2e9),
            rseq_is_registered: true,
            rseq_shows_waits: true,
            has_thread_clock: true,
            nanos_x32: Some(1 << 31),
        };
        assert_eq!(full.best(), Kind::Rseq);
        let probe = Probe { rseq_is_registered: false, ..full.clone() };
        assert_eq!(probe.best(), Kind::Anchor);
        let probe = Probe { nanos_x32: None, ..full.clone() };
        assert_eq!(probe.best(), Kind::ThreadClock);
        let probe = Probe { has_thread_clock: false, ..full };
        assert_eq!(probe.best(), Kind::Wall);
    }

    #[test]
    fn what_is_found_agrees_with_itself() {
        let probe = Probe::of_this_machine();
        let trusted = probe.clock_source.as_deref() == Some("tsc")
            && probe.tsc_is_invariant
            && probe.tsc_is_readable;
        assert!(trusted || probe.best() <= Kind::ThreadClock, "{probe:?}");
        assert_eq!(probe.tsc_hertz.is_some(), probe.nanos_x32.is_some());
        assert!(probe.tsc_hertz.is_none_or(|hertz| (1e8..=1e10).contains(&hertz)), "{probe:?}");
        assert!(probe.rseq_is_registered || !probe.rseq_shows_waits);
    }
}
