//! What one metered poll costs: a future that does nothing, polled in a loop.

use super::accuracy::thread_nanos;
use crate::measure::Contender;
use futures_util::task::noop_waker_ref;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;
use tidegate_meter::{Account, Kind, Meter};

/// What the others are compared with: the first of the contenders.
pub(super) const BARE: &str = "not metered";
pub(super) const RSEQ: &str = "metered: TSC, anchor and rseq";
const INSTANT: &str = "Instant at both ends";
const CLOCK: &str = "thread clock at both ends";
const RAW: &str = "TSC at both ends";
const SHARED: &str = "rseq, an account with two futures";
const NESTED: &str = "rseq, two nested accounts";

/// Never ready, like most polls.
struct Idle(u64);

impl Future for Idle {
    type Output = ();

    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.0 += 1;
        black_box(Poll::Pending)
    }
}

fn polls(future: impl Future<Output = ()>, operations: u64) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(noop_waker_ref());
    for _ in 0..operations {
        let _ = black_box(future.as_mut().poll(&mut context));
    }
}

/// Polls with a clock that is read before and after, and nothing else.
fn clocked<T: Copy + 'static>(
    name: &'static str,
    read: fn() -> T,
    passed: fn(T, T) -> u64,
) -> Contender<'static> {
    Contender::alone(name, move |operations| {
        let mut sum = 0;
        let mut idle = Idle(0);
        let future = poll_fn(|context| {
            let before = read();
            let poll = Pin::new(&mut idle).poll(context);
            sum += passed(before, read());
            poll
        });
        polls(future, operations);
        black_box(sum);
    })
}

/// A metered future of `kind`.
const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Wall => "metered: TSC (wall time)",
        Kind::ThreadClock => "metered: thread clock",
        Kind::Anchor => "metered: TSC and anchor",
        _ => RSEQ,
    }
}

/// The name of a contender for programs: that of its kind where it is a metered future.
pub(super) fn key(contender: &str) -> &'static str {
    match contender {
        BARE => "not_metered",
        INSTANT => "instant_at_both_ends",
        CLOCK => "thread_clock_at_both_ends",
        RAW => "tsc_at_both_ends",
        SHARED => "rseq_shared",
        NESTED => "rseq_nested",
        _ => {
            let kind = Kind::ALL.into_iter().find(|kind| name(*kind) == contender);
            kind.map_or("unknown", Kind::name)
        }
    }
}

pub(super) fn contenders<'a>() -> Vec<Contender<'a>> {
    let mut contenders = vec![
        Contender::alone(BARE, |operations| polls(Idle(0), operations)),
        clocked(INSTANT, Instant::now, |from, to| to.duration_since(from).as_nanos() as u64),
        clocked(CLOCK, thread_nanos, |from, to| (to - from) as u64),
    ];
    if Meter::ticks().is_some() {
        let ticks = || Meter::ticks().unwrap_or_default();
        contenders.push(clocked(RAW, ticks, |from, to| to.wrapping_sub(from)));
    }
    for kind in Kind::ALL {
        contenders.push(Contender::alone(name(kind), move |operations| {
            Meter::limit_here(kind);
            let account = Account::new();
            polls(account.meter(Idle(0)), operations);
            black_box(account.so_far());
        }));
    }
    contenders.push(Contender::alone(SHARED, |operations| {
        let account = Account::new();
        // The first scope has the counter for one; the future's is the second.
        let _first = account.scope();
        polls(account.meter(Idle(0)), operations);
        black_box(account.so_far());
    }));
    contenders.push(Contender::alone(NESTED, |operations| {
        let (outer, inner) = (Account::new(), Account::new());
        polls(outer.meter(inner.meter(Idle(0))), operations);
        black_box((outer.so_far(), inner.so_far()));
    }));
    contenders
}

/// What metering adds to a poll, in nanoseconds: the median over the rounds of what it takes more
/// than a poll that is not metered.
pub(super) fn added(contenders: &[Contender<'_>], of: usize) -> f64 {
    let pairs = contenders[of].nanos.iter().zip(&contenders[0].nanos);
    crate::measure::median(pairs.map(|(with, without)| with - without))
}
