use super::*;
use crate::{Account, Totals};
use std::hint::black_box;
use std::time::Duration;

/// How much a clock may be ahead of the truth: the age of an anchor, and the rate's last digit.
fn allowed(wall: Duration) -> Duration {
    wall + Duration::from_nanos(crate::clock::AGE_MAX) + wall / 1_000
}

fn work(steps: u32) {
    for step in 0..steps {
        black_box(step);
    }
}

/// On a thread of its own, as the kind is the thread's.
fn on_a_thread_of(kind: Kind, test: impl FnOnce() + Send) {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let got = Meter::limit_here(kind);
            assert_eq!(got, kind.min(Meter::probe().best()));
            assert_eq!(Meter::kind(), got);
            test();
        });
    });
}

#[test]
fn numbers_and_names_tell_kinds_apart() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_number(kind as u8), kind);
        assert!(Kind::ALL.iter().all(|other| (other.name() == kind.name()) == (*other == kind)));
    }
    assert!(Kind::ALL.is_sorted());
}

/// Every kind: never less than before, never more than what has passed.
#[test]
fn cpu_time_grows_and_is_less_than_time() {
    for kind in Kind::ALL {
        on_a_thread_of(kind, || {
            let account = Account::new();
            let start = Instant::now();
            let mut last = Duration::ZERO;
            for n in 0..20_000 {
                account.run(|| work(n % 50));
                let so_far = account.so_far();
                assert!(so_far >= last, "{kind:?}: {so_far:?} after {last:?}");
                last = so_far;
            }
            let wall = start.elapsed();
            assert!(last <= allowed(wall), "{kind:?}: {last:?} in {wall:?}");
        });
    }
}

#[test]
fn threads_together_have_no_more_than_time_times_threads() {
    for kind in Kind::ALL {
        let account = Account::new();
        let start = Instant::now();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    on_a_thread_of(kind, || {
                        for _ in 0..1_000 {
                            account.run(|| work(1_000));
                        }
                    });
                });
            }
        });
        let wall = start.elapsed();
        assert!(account.so_far() <= allowed(wall) * 3, "{kind:?}: {account:?} in {wall:?}");
    }
}

/// The exact kind never exceeds the clock it reads.
#[test]
fn the_thread_clock_is_exact() {
    if Meter::probe().best() < Kind::ThreadClock {
        return;
    }
    on_a_thread_of(Kind::ThreadClock, || {
        let account = Account::new();
        let before = cpu::thread().unwrap();
        for _ in 0..1_000 {
            account.run(|| work(1_000));
        }
        let passed = cpu::thread().unwrap() - before;
        assert!(account.so_far() <= Duration::from_nanos(passed));
        assert!(!account.so_far().is_zero());
    });
}

#[test]
fn the_kind_may_change_in_a_scope() {
    on_a_thread_of(Kind::ThreadClock, || {
        let account = Account::new();
        let start = Instant::now();
        account.run(|| {
            for kind in Kind::ALL.into_iter().chain(Kind::ALL) {
                Meter::limit_here(kind);
                work(1_000);
                account.so_far();
            }
        });
        let wall = start.elapsed();
        assert!(account.so_far() <= allowed(wall), "{account:?} in {wall:?}");
    });
}

#[test]
fn what_is_charged_is_in_the_totals() {
    let before = Totals::now();
    let account = Account::new();
    account.run(|| work(100_000));
    let after = Totals::now();
    assert!(after.attributed.saturating_sub(before.attributed) >= account.so_far());
    let share = after.unattributed_since(&before);
    assert_eq!(share.is_some(), after.process.is_some());
}
