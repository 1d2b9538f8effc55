//! How many retries a client may make.
//!
//! An account in billionths of a retry. Each request deposits `ratio` (a tenth: 100,000,000), each
//! retry withdraws a whole one (1,000,000,000) or is refused. All of it is integers, so for any
//! ratio and in any order
//!
//! ```text
//! retries x 1,000,000,000 <= requests x ratio in billionths
//! ```
//!
//! exactly, not about. Dividing instead ("one retry per 1/ratio requests") turns 0.4 into a half.
//!
//! Calm hours must not save up a storm: the balance is capped at what the requests of the last
//! `window` have deposited, so that in any span of time
//!
//! ```text
//! retries in T <= ratio x requests in (T and the window before it)
//! ```
//!
//! One whole retry may always be kept, else a client of less than a request a second would see its
//! credit expire before it amounts to one. The line above may be exceeded by that one; the first
//! bound, over all time, never is.

use crate::units::{Ratio, Timestamp, nanos};
use crate::window::Window;
use core::time::Duration;

/// What a retry costs, in billionths.
pub(super) const RETRY: u64 = Ratio::WHOLE as u64;

/// Steps in which the window forgets: a tenth of it, a second by default.
const BUCKETS: usize = 10;

/// How many retries a client may make. Start from [`BudgetConfig::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetConfig {
    /// Retries per request: a tenth, so that a backend that refuses everything sees 1.1 times the
    /// requests and not 3 times.
    pub ratio: Ratio,
    /// How long unused credit is kept: ten seconds. It is all spent at once when a backend begins
    /// to refuse; at a tenth per request that burst is one second's worth of requests, which a
    /// fleet swallows. A longer window makes the burst longer, a shorter one leaves small clients
    /// without credit.
    pub window: Duration,
    /// Retries a second that are allowed whatever the requests: none.
    ///
    /// For a client that sends a request now and then, a tenth of its requests is no retry at all
    /// for minutes; one retry a second here lets it retry every request. Mind the fleet: ten
    /// thousand such clients may then make ten thousand retries a second, and the growth is no
    /// longer 1.1 but up to 3.
    pub retries_min_per_second: u32,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            ratio: Ratio::percent(10),
            window: Duration::from_secs(10),
            retries_min_per_second: 0,
        }
    }
}

/// What to put into the account, and how much it may hold then. In billionths.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credit {
    amount: u64,
    balance_max: u64,
}

impl Credit {
    /// The balance after the deposit and the cap.
    pub(super) fn applied_to(self, balance: u64) -> u64 {
        balance.saturating_add(self.amount).min(self.balance_max)
    }
}

/// The arithmetic of deposits, the same for one owner and for many threads.
#[derive(Debug, Clone)]
#[repr(C)] // What requests touch comes first, and together.
pub(super) struct Ledger {
    requests: Window<u64>,
    config: BudgetConfig,
    last: Option<Timestamp>,
}

impl Ledger {
    pub(super) fn new(config: BudgetConfig) -> Self {
        Self { config, requests: Window::new(config.window, BUCKETS), last: None }
    }

    /// What `requests` more requests, and the time since the last call, are worth.
    #[inline]
    pub(super) fn accrue(&mut self, requests: u64, now: Timestamp) -> Credit {
        let ratio = u64::from(self.config.ratio.billionths());
        self.requests.add(requests, now);
        let kept = self.requests.total(now).saturating_mul(ratio);
        let mut credit =
            Credit { amount: requests.saturating_mul(ratio), balance_max: kept.max(RETRY) };
        if self.config.retries_min_per_second > 0 {
            self.accrue_time(&mut credit, kept, now);
        }
        credit
    }

    /// What the time since the last call is worth where that is anything.
    #[cold]
    fn accrue_time(&mut self, credit: &mut Credit, kept: u64, now: Timestamp) {
        // One retry a second is one billionth of a retry a nanosecond.
        let per_nano = u64::from(self.config.retries_min_per_second);
        let elapsed = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = self.last.max(Some(now));
        credit.amount = credit.amount.saturating_add(nanos(elapsed).saturating_mul(per_nano));
        let kept = kept.saturating_add(nanos(self.config.window).saturating_mul(per_nano));
        credit.balance_max = kept.max(RETRY);
    }
}

/// The retry budget of one client, for a single owner.
///
/// Where many threads send, a [`BudgetController`](super::BudgetController) does the same sums for
/// a gate.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_core::retry::{BudgetConfig, RetryBudget};
///
/// let mut budget = RetryBudget::new(BudgetConfig::default());
/// let now = Timestamp::from_secs(1);
/// for _ in 0..29 {
///     budget.deposit(now);
/// }
/// let granted = (0..29).filter(|_| budget.withdraw(now)).count();
/// assert_eq!(granted, 2);
/// ```
#[derive(Debug, Clone)]
#[repr(C, align(64))] // A cache line for what requests touch.
pub struct RetryBudget {
    balance: u64,
    ledger: Ledger,
}

impl RetryBudget {
    /// An empty account: the first requests have to earn the first retry.
    pub fn new(config: BudgetConfig) -> Self {
        Self { ledger: Ledger::new(config), balance: 0 }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self) -> u64 {
        self.balance
    }

    /// A request is sent for the first time. Not for retries. O(1), some nanoseconds.
    #[inline]
    pub fn deposit(&mut self, now: Timestamp) {
        self.settle(1, now);
    }

    /// Takes one retry out of the account, if there is one. O(1), some nanoseconds.
    #[must_use]
    pub fn withdraw(&mut self, now: Timestamp) -> bool {
        self.settle(0, now);
        match self.balance.checked_sub(RETRY) {
            Some(rest) => {
                self.balance = rest;
                true
            }
            None => false,
        }
    }

    /// Whole retries that could be made at `now`.
    pub fn available(&mut self, now: Timestamp) -> u64 {
        self.settle(0, now);
        self.balance / RETRY
    }

    #[inline]
    fn settle(&mut self, requests: u64, now: Timestamp) {
        self.balance = self.ledger.accrue(requests, now).applied_to(self.balance);
    }
}
