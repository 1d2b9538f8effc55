//! What one metered poll costs: a future that does nothing, polled in a loop.

use crate::measure::{Contender, cpu_seconds};
use futures_util::task::noop_waker_ref;
use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;
use tidegate_meter::{Account, Kind, Meter};

pub(super) const BARE: &str = "a poll, not metered";
pub(super) const INSTANT: &str = "Instant::now at both ends";
pub(super) const THREAD_CLOCK: &str = "thread clock at both ends";

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

/// The name of the line of a metered future of `kind`.
pub(super) const fn metered(kind: Kind) -> &'static str {
    match kind {
        Kind::Wall => "metered future, raw TSC (wall time)",
        Kind::ThreadClock => "metered future, thread clock",
        Kind::Anchor => "metered future, TSC and anchor",
        _ => "metered future, TSC, anchor and rseq",
    }
}

/// The same for a future in a future, each with an account.
pub(super) const NESTED: &str = "two nested accounts, TSC, anchor and rseq";
pub(super) const SHARED: &str = "a shared account, TSC, anchor and rseq";

pub(super) fn contenders<'a>() -> Vec<Contender<'a>> {
    let mut contenders = vec![
        Contender::alone(BARE, |operations| polls(Idle(0), operations)),
        Contender::alone(INSTANT, |operations| {
            let mut sum = 0;
            polls(
                around(
                    Idle(0),
                    || {
                        let start = Instant::now();
                        move || start.elapsed().as_nanos() as u64
                    },
                    &mut sum,
                ),
                operations,
            );
            black_box(sum);
        }),
        Contender::alone(THREAD_CLOCK, |operations| {
            let mut sum = 0.0;
            polls(
                around(
                    Idle(0),
                    || {
                        let start = cpu_seconds();
                        move || cpu_seconds() - start
                    },
                    &mut sum,
                ),
                operations,
            );
            black_box(sum);
        }),
    ];
    for kind in Kind::ALL {
        contenders.push(Contender::alone(metered(kind), move |operations| {
            Meter::limit_here(kind);
            let account = Account::new();
            polls(account.meter(Idle(0)), operations);
            black_box(account.so_far());
        }));
    }
    contenders.push(Contender::alone(SHARED, |operations| {
        let account = Account::new();
        // The first scope has the counter for one; this is the second.
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

/// A future with a clock that is read before and after each poll.
fn around<'a, F, C, E, N>(future: F, begin: C, sum: &'a mut N) -> impl Future<Output = ()> + 'a
where
    F: Future<Output = ()> + 'a,
    C: Fn() -> E + 'a,
    E: FnOnce() -> N,
    N: std::ops::AddAssign + 'a,
{
    let mut future = Box::pin(future);
    std::future::poll_fn(move |context| {
        let end = begin();
        let poll = future.as_mut().poll(context);
        *sum += end();
        poll
    })
}
