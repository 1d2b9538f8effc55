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
    amount: u128,
    balance_max: u64,
}

impl Credit {
    /// The balance after the deposit and the cap.
    pub(super) fn applied_to(self, balance: u64) -> u64 {
        let balance = u128::from(balance).saturating_add(self.amount);
        balance.min(u128::from(self.balance_max)) as u64
    }
}

/// The arithmetic of deposits, the same for one owner and for many threads.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    config: BudgetConfig,
    requests: Window<u64>,
    last: Option<Timestamp>,
}

impl Ledger {
    pub(super) fn new(config: BudgetConfig) -> Self {
        Self { config, requests: Window::new(config.window, BUCKETS), last: None }
    }

    /// What `requests` more requests, and the time since the last call, are worth.
    pub(super) fn accrue(&mut self, requests: u64, now: Timestamp) -> Credit {
        let ratio = u128::from(self.config.ratio.billionths());
        // One retry a second is one billionth of a retry a nanosecond.
        let per_nano = u128::from(self.config.retries_min_per_second);

        let elapsed = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = self.last.max(Some(now));
        self.requests.add(requests, now);

        let kept = u128::from(self.requests.total(now)) * ratio
            + u128::from(nanos(self.config.window)) * per_nano;
        Credit {
            amount: u128::from(requests) * ratio + u128::from(nanos(elapsed)) * per_nano,
            balance_max: u64::try_from(kept).unwrap_or(u64::MAX).max(RETRY),
        }
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
pub struct RetryBudget {
    ledger: Ledger,
    balance: u64,
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
        self.balance ^ self.ledger.requests.touch()
    }

    /// A request is sent for the first time. Not for retries. O(1), some nanoseconds.
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

    fn settle(&mut self, requests: u64, now: Timestamp) {
        self.balance = self.ledger.accrue(requests, now).applied_to(self.balance);
    }
}
