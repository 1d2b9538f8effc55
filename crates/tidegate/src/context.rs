//! What a handler can ask about the request that it works for.
//!
//! The layer gives each admitted request a context, which rides on the account that pays for its
//! CPU time. So it is there wherever work for the request is done: in every poll of the handler and
//! of the response's body, and in whatever [`spawn`](crate::spawn()) and
//! [`spawn_blocking`](crate::spawn_blocking) run. It is not there in tasks that plain
//! `tokio::spawn` starts: these are nobody's, and what they call is `CRITICAL`.
//!
//! ```
//! use tidegate::context;
//! use tidegate_core::Criticality;
//!
//! async fn handler() -> &'static str {
//!     if context::degrade() {
//!         return "the short answer";
//!     }
//!     // Whatever this calls may be shed first.
//!     context::with_criticality(Criticality::Sheddable, refresh_suggestions()).await;
//!     "the long answer"
//! }
//! # async fn refresh_suggestions() {}
//! ```
//!
//! **An overload answer from below.** A client layer that gives up on a dependency calls
//! [`overloaded_below`]. If the handler then fails, its answer becomes "overloaded; don't retry";
//! if it makes do without, its answer stands.
//!
//! Outside of any request the answers are those of a request of which nothing is known.

use crate::server::PeerIdentity;
use crate::task::Task;
use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use core::task::{Context as Waking, Poll};
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::cost::MethodId;
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};
use tidegate_meter::{Account, with_current};
use tidegate_wire::reject::DecisionId;

/// What rides on the account of a request.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) task: Task,
    pub(crate) admitted_as: Criticality,
    /// What its calls count as: an index of `Criticality::ALL`.
    calls_as: AtomicU8,
    pub(crate) customer: CustomerId,
    /// Who sent it, where the connection says so.
    pub(crate) peer: Option<PeerIdentity>,
    pub(crate) method: MethodId,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) attempt: u32,
    pub(crate) degrade: bool,
    /// Whether its answer has no body on the wire, whatever the handler gives.
    pub(crate) bodiless: bool,
    /// Whether the trailers of its answer are in the body.
    pub(crate) grpc_web: bool,
    /// The decision that let it in.
    pub(crate) id: DecisionId,
    /// When that was.
    pub(crate) began: Timestamp,
    /// The name of its method, if that had no entry then.
    pub(crate) unknown: Option<Box<str>>,
    /// Whether the handler has heard that less would do.
    heard: AtomicBool,
    overloaded_below: AtomicBool,
    /// Whether anything was spawned for it.
    spawned: AtomicBool,
    done: AtomicBool,
    /// Nanoseconds that were settled.
    settled: AtomicU64,
}

impl Context {
    #[inline]
    pub(crate) fn new(task: Task, criticality: Criticality, customer: CustomerId) -> Self {
        Self {
            task,
            admitted_as: criticality,
            calls_as: AtomicU8::new(criticality as u8),
            customer,
            peer: None,
            method: MethodId::default(),
            deadline: None,
            attempt: 1,
            degrade: false,
            bodiless: false,
            grpc_web: false,
            id: DecisionId(0),
            began: Timestamp::ZERO,
            unknown: None,
            heard: AtomicBool::new(false),
            overloaded_below: AtomicBool::new(false),
            spawned: AtomicBool::new(false),
            done: AtomicBool::new(false),
            settled: AtomicU64::new(0),
        }
    }

    fn calls_as(&self) -> Criticality {
        let index = self.calls_as.load(Ordering::Relaxed);
        Criticality::from_index(index.into()).unwrap_or(self.admitted_as)
    }

    /// Whether a cheaper answer would help; and that is heard.
    fn degrade(&self) -> bool {
        if self.degrade {
            self.heard.store(true, Ordering::Relaxed);
        }
        self.degrade
    }

    /// Whether the handler has heard that less would do: who has not gives a full answer.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    pub(crate) fn is_overloaded_below(&self) -> bool {
        self.overloaded_below.load(Ordering::Relaxed)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn spawns(&self) {
        self.spawned.store(true, Ordering::Relaxed);
    }

    /// The request is done: what it has cost, in CPU time of this machine. Children that go on
    /// settle for themselves, by [`Context::settle_late`].
    #[inline]
    pub(crate) fn settle(&self, account: &Account) -> Duration {
        if !self.spawned.load(Ordering::Relaxed) {
            return account.so_far();
        }
        self.done.store(true, Ordering::Relaxed);
        // Either a child that ends now sees that the request is done, or we see what the child has
        // charged.
        fence(Ordering::SeqCst);
        let so_far = account.so_far();
        self.settled.fetch_max(nanos(so_far), Ordering::Relaxed);
        so_far
    }

    /// A child has ended: what it and others have used since the request was done, if it is.
    #[cfg(feature = "tokio")]
    pub(crate) fn settle_late(&self, account: &Account) -> Option<Duration> {
        fence(Ordering::SeqCst);
        if !self.done.load(Ordering::Relaxed) {
            return None;
        }
        let so_far = nanos(account.so_far());
        let before = self.settled.fetch_max(so_far, Ordering::Relaxed);
        let late = so_far.saturating_sub(before);
        (late > 0).then(|| Duration::from_nanos(late))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Asks the context of the request that is worked for here and now.
#[inline]
pub(crate) fn with<R>(ask: impl FnOnce(&Account, &Context) -> R) -> Option<R> {
    with_current(|account| {
        let account = account?;
        Some(ask(account, account.context::<Context>()?))
    })
}

thread_local! {
    /// What `with_criticality` says, while its future is polled.
    static SAID: Cell<Option<Criticality>> = const { Cell::new(None) };
}

/// Puts back what was said before.
struct Restore(Option<Criticality>);

impl Drop for Restore {
    fn drop(&mut self) {
        SAID.with(|said| said.set(self.0));
    }
}

/// Runs `work` in which calls count as `said`; with none, as whatever the request says.
#[inline]
pub(crate) fn saying<R>(said: Option<Criticality>, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(SAID.with(|before| before.replace(said)));
    work()
}

/// What was said around here, for children to inherit.
#[cfg(feature = "tokio")]
pub(crate) fn said() -> Option<Criticality> {
    SAID.get()
}

/// Whether a request is worked for here and now.
pub fn is_request() -> bool {
    with(|_, _| ()).is_some()
}

/// What calls that are made here and now count as: what the request was admitted as, unless it was
/// said otherwise. Outside of a request, and without a word, `CRITICAL`.
pub fn criticality() -> Criticality {
    let inherited = || with(|_, context| context.calls_as());
    SAID.get().or_else(inherited).unwrap_or(Criticality::Critical)
}

/// What calls of this request count as from now on, lower or higher. Returns whether there is a
/// request.
pub fn set_criticality(criticality: Criticality) -> bool {
    with(|_, context| context.calls_as.store(criticality as u8, Ordering::Relaxed)).is_some()
}

/// `future`, the calls of which count as `criticality`, lower or higher. What it spawns inherits
/// that.
pub const fn with_criticality<F>(criticality: Criticality, future: F) -> WithCriticality<F> {
    WithCriticality { criticality, future }
}

pin_project_lite::pin_project! {
    /// Made by [`with_criticality`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct WithCriticality<F> {
        criticality: Criticality,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for WithCriticality<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<F::Output> {
        let this = self.project();
        saying(Some(*this.criticality), || this.future.poll(waking))
    }
}

/// When the request's caller stops waiting, by the task's clock.
pub fn deadline() -> Option<Timestamp> {
    with(|_, context| context.deadline).flatten()
}

/// How much longer the request's caller waits: nothing if it said nothing, zero if it has stopped.
pub fn remaining() -> Option<Duration> {
    with(|_, context| Some(context.deadline?.since(context.task.inner.clock.now()))).flatten()
}

/// Whether a cheaper answer would help: the task is close to shedding.
pub fn degrade() -> bool {
    with(|_, context| context.degrade()).unwrap_or(false)
}

/// What the request has cost so far, with its children, in CPU time of the reference machine.
pub fn cost_so_far() -> Cost {
    let cost = with(|account, context| context.task.inner.factor.cost_of(account.so_far()));
    cost.unwrap_or(Cost::from_nanos(0))
}

/// Which try this is, from 1.
pub fn attempt() -> u32 {
    with(|_, context| context.attempt).unwrap_or(1)
}

/// Whom the request is charged to.
pub fn customer() -> CustomerId {
    with(|_, context| context.customer).unwrap_or(CustomerId::DEFAULT)
}

/// The name of whom it is charged to, if that one has limits of their own.
pub fn customer_name() -> Option<Arc<str>> {
    with(|_, context| context.task.inner.customer_name(context.customer)).flatten()
}

/// Who sent the request, where the connection says so.
pub fn peer() -> Option<PeerIdentity> {
    with(|_, context| context.peer.clone()).flatten()
}

/// The task that serves the request.
pub fn task() -> Option<Task> {
    with(|_, context| context.task.clone())
}

/// A dependency has refused for overload, and it is no use to try again. For client layers.
pub fn overloaded_below() {
    with(|_, context| context.overloaded_below.store(true, Ordering::Relaxed));
}

/// Whether a dependency has refused for overload, so that an answer without it is all there is.
pub fn is_overloaded_below() -> bool {
    with(|_, context| context.is_overloaded_below()).unwrap_or(false)
}

/// The request on whose behalf something is done, for whoever has to ask later, or from elsewhere:
/// a client whose calls run in tasks of their own.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    account: Option<Account>,
    said: Option<Criticality>,
}

impl Caller {
    /// Whoever is worked for here and now; nobody, outside of a request.
    pub fn current() -> Self {
        let account = with(|account, _| account.clone());
        Self { account, said: SAID.get() }
    }

    fn context(&self) -> Option<&Context> {
        self.account.as_ref()?.context()
    }

    /// What its calls count as, if it has said so or is a request.
    pub fn criticality(&self) -> Option<Criticality> {
        self.said.or_else(|| self.context().map(Context::calls_as))
    }

    /// How much longer the request's caller waits, if it has said so.
    pub fn remaining(&self) -> Option<Duration> {
        let context = self.context()?;
        Some(context.deadline?.since(context.task.inner.clock.now()))
    }

    /// Whom it is charged to, if that one has limits of their own.
    pub fn customer_name(&self) -> Option<Arc<str>> {
        let context = self.context()?;
        context.task.inner.customer_name(context.customer)
    }

    /// A call below was refused for overload or had no answer, here or there, and is not tried
    /// again.
    pub fn gave_up(&self) {
        if let Some(context) = self.context() {
            context.overloaded_below.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
