//! CPU time of requests, measured poll by poll.
//!
//! # The problem
//!
//! What a request costs is the CPU time that its polls take, on whatever threads they run. Wall
//! time will not do: beside a busy neighbour it reads twice the truth, for single requests seven
//! times. The clock that tells the truth, `CLOCK_THREAD_CPUTIME_ID`, is a system call of 200 ns;
//! at both ends of each poll that costs more than many a poll does.
//!
//! # The mechanism
//!
//! 1. A clock of each thread's CPU time that is nearly always one reading of the time-stamp
//!    counter: see [`Kind`] and [`Meter`].
//! 2. An [`Account`] for each request, and scopes that charge it for what runs inside them:
//!    [`Metered`] futures, [`Scope::run`] for bodies and the like, [`Account::run`] for blocking
//!    work. Where scopes nest, the inner one's time is not the outer one's.
//! 3. [`Totals`]: how much was charged in all, beside the CPU time of the process. What no request
//!    explains (the runtime, timers, the kernel's part of `epoll`) is to be published, and costs
//!    scaled by it.
//! 4. [`machine`]: how fast this machine is, as a number to compare machines by.
//! 5. [`monotonic`](monotonic()): the system's clock, by the same counter where that is trusted.
//!
//! And, as this is the one crate with unsafe code, [`lend`](lend()): wakers for polls in which
//! nobody keeps one.
//!
//! ```
//! use tidegate_meter::{Account, current};
//!
//! struct Request { customer: &'static str }
//!
//! let account = Account::with_context(Request { customer: "shop" });
//! let sum = account.run(|| {
//!     // Deep inside, whoever needs the request finds it.
//!     let account = current().expect("inside a scope");
//!     assert_eq!(account.context::<Request>().map(|r| r.customer), Some("shop"));
//!     (0..1_000_u64).sum::<u64>()
//! });
//! assert_eq!(sum, 499_500);
//! println!("{:?}", account.so_far());
//! ```
//!
//! # When it is wrong
//!
//! A clock that cannot be trusted is not used: the next best is, up to the system call itself.
//! What nothing can see is CPU time that a hypervisor takes away; it is charged to whoever runs,
//! for at most a millisecond at a time.

mod account;
mod clock;
#[allow(unsafe_code)]
mod current;
mod ledger;
#[allow(unsafe_code)]
mod lend;
pub mod machine;
mod meter;
mod metered;
mod monotonic;
mod probe;
mod sys;
mod totals;

pub use account::{Account, Scope, current, with_current};
pub use lend::{Lend, lend};
pub use meter::{Kind, Meter};
pub use metered::Metered;
pub use monotonic::monotonic;
pub use probe::Probe;
pub use totals::Totals;
