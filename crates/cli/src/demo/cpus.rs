//! Who runs where.
//!
//! A load generator on the core of the service takes from what it measures, and so do two services
//! on one core. So the load is pinned apart from the services, and each service has a core of its
//! own while it is driven:
//!
//! ```text
//! CPUs    services                         load          both sides
//! 1       on it                            on it         one after the other
//! 2       on the first                     the second    one after the other
//! 3 ...   on the first and on the second   the rest      at once
//! ```
//!
//! Whoever watches wants to see both at once, though, so there they share a core if they have to.
//! The kernel gives each half of it, and more while the other idles: that is in favour of the one
//! that has fallen behind.
//!
//! A service that cannot be pinned would stay where whoever starts it is, on the CPUs of the load.
//! So it goes back to all that the demo was given; where the system refuses that as well, the
//! report says where it runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whether both sides are driven at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Turns {
    /// At once on three CPUs or more, and in the live view
    Auto,
    /// Both at the same time; on less than three CPUs they share one
    AtOnce,
    /// First bare, then protected
    InTurn,
}

/// Who runs where, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    /// The CPUs of the bare service and of the protected one; none means any.
    pub(super) services: [Option<usize>; 2],
    /// The CPUs of the load; empty means any.
    pub(super) load: Vec<usize>,
    /// All that the demo was given.
    pub(super) all: Vec<usize>,
    /// Whether both sides are driven at the same time.
    pub(super) at_once: bool,
}

impl Places {
    /// For the CPUs that this process may use, and whether somebody watches.
    pub(super) fn find(turns: Turns, watched: bool) -> Self {
        let turns = if turns == Turns::Auto && watched { Turns::AtOnce } else { turns };
        Self::among(&allowed(), turns)
    }

    fn among(allowed: &[usize], turns: Turns) -> Self {
        let at_once = match turns {
            Turns::Auto => allowed.len() >= 3,
            Turns::AtOnce => true,
            Turns::InTurn => false,
        };
        let (services, load) = match *allowed {
            [] | [_] => ([None; 2], Vec::new()),
            [first, second, ref rest @ ..] if at_once && !rest.is_empty() => {
                ([Some(first), Some(second)], rest.to_vec())
            }
            [first, ref rest @ ..] => ([Some(first); 2], rest.to_vec()),
        };
        Self { services, load, all: allowed.to_vec(), at_once }
    }

    /// How much of a CPU each service has while it is driven.
    pub(super) fn share(&self) -> f64 {
        if self.at_once && self.services[0] == self.services[1] { 0.5 } else { 1.0 }
    }

    /// In one line.
    pub(super) fn describe(&self) -> String {
        let load = match self.load[..] {
            [only] => format!("CPU {only}"),
            [first, .., last] => format!("CPUs {first} to {last}"),
            [] => return self.describe_unpinned().to_owned(),
        };
        match self.services {
            [Some(bare), Some(protected)] if bare != protected => format!(
                "bare on CPU {bare}, protected on CPU {protected}, load on {load}; both at once"
            ),
            [Some(cpu), _] if self.at_once => {
                format!("both services share CPU {cpu}, half each; load on {load}; both at once")
            }
            [Some(cpu), _] => format!(
                "services on CPU {cpu}, load on {load}; first bare, then protected, each alone"
            ),
            _ => self.describe_unpinned().to_owned(),
        }
    }

    const fn describe_unpinned(&self) -> &'static str {
        if self.at_once {
            "one CPU for the load and both services: figures are of all of them together"
        } else {
            "one CPU for load and service: what the load takes, the service lacks"
        }
    }
}

/// The CPUs that the calling thread may use.
fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Where a service has come to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Seat {
    /// On the CPU that it was given, or nobody has given it one.
    Own,
    /// On any that the demo was given.
    Any,
    /// Where whoever started it is.
    Inherited,
}

/// Has the calling thread, and those that it starts, stay on `cpu`; if that cannot be, on any of
/// `all`.
pub(super) fn sit(cpu: Option<usize>, all: &[usize]) -> Seat {
    let Some(cpu) = cpu else { return Seat::Own };
    if pin(&[cpu]) {
        return Seat::Own;
    }
    // Whether that has worked is seen in what is allowed: it may have been so before.
    pin(all);
    let allowed = allowed();
    let free = !all.is_empty() && all.iter().all(|cpu| allowed.contains(cpu));
    if free { Seat::Any } else { Seat::Inherited }
}

/// Has the calling thread, and those that it starts, run on these CPUs only. Returns whether that
/// worked; with none nothing is asked.
pub(super) fn pin(cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    cpus.is_empty() || sched_setaffinity(None, &set).is_ok()
}

/// Has the calling thread, and those that it starts, give way to the threads that send: whoever
/// counts and draws beside them would make them late.
pub(super) fn give_way() {
    // If the system refuses, the report tells how late they were.
    let _ = rustix::process::nice(GIVE_WAY);
}

/// A tenth of the share of a thread that does not give way.
const GIVE_WAY: i32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_by_the_table() {
        let places = |allowed: &[usize], turns| {
            let Places { services, load, all, at_once } = Places::among(allowed, turns);
            assert_eq!(all, allowed);
            (services, load, at_once)
        };
        let table = [
            (&[][..], Turns::Auto, ([None; 2], vec![], false)),
            (&[3], Turns::Auto, ([None; 2], vec![], false)),
            (&[0, 1], Turns::Auto, ([Some(0); 2], vec![1], false)),
            (&[0, 1], Turns::AtOnce, ([Some(0); 2], vec![1], true)),
            (&[2, 4, 6, 7], Turns::Auto, ([Some(2), Some(4)], vec![6, 7], true)),
            (&[2, 4, 6, 7], Turns::InTurn, ([Some(2); 2], vec![4, 6, 7], false)),
        ];
        for (allowed, turns, expected) in table {
            assert_eq!(places(allowed, turns), expected, "{allowed:?} {turns:?}");
        }
    }

    /// On a thread of its own, as it moves that.
    #[test]
    fn who_cannot_be_pinned_leaves_the_cpus_of_the_load() {
        // One that no machine of ours has.
        let nowhere = Some(CpuSet::MAX_CPU - 1);
        let seats = std::thread::spawn(move || {
            let all = allowed();
            let load = [*all.last().unwrap()];
            assert!(pin(&load));
            let seat = sit(nowhere, &all);
            assert_eq!((seat, allowed()), (Seat::Any, all.clone()));
            assert_eq!((sit(Some(load[0]), &all), allowed()), (Seat::Own, load.to_vec()));
            // It was given none, or is not told which there are.
            assert_eq!((sit(None, &all), allowed()), (Seat::Own, load.to_vec()));
            assert_eq!((sit(nowhere, &[]), allowed()), (Seat::Inherited, load.to_vec()));
        });
        seats.join().unwrap();
    }

    #[test]
    fn sharing_is_said() {
        for (allowed, turns, word) in [
            (&[0][..], Turns::Auto, "one CPU for load and service"),
            (&[0], Turns::AtOnce, "one CPU for the load and both"),
            (&[0, 1], Turns::Auto, "each alone"),
            (&[0, 1], Turns::AtOnce, "share CPU 0, half each"),
            (&[0, 1, 2], Turns::Auto, "bare on CPU 0, protected on CPU 1, load on CPU 2"),
            (&[0, 1, 2, 3], Turns::InTurn, "load on CPUs 1 to 3"),
        ] {
            let said = Places::among(allowed, turns).describe();
            assert!(said.contains(word), "{allowed:?} {turns:?}: {said}");
        }
    }
}
