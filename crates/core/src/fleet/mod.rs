//! Quota across the fleet: each customer's limit holds for all tasks together.
//!
//! Tasks report what each customer uses and wants; the server divides each customer's limits among
//! its tasks by demand and pushes every task its part; the task enforces it alone. A request never
//! waits for the server, and a customer is held to its limit whichever task it goes to.
//!
//! | question | module |
//! |---|---|
//! | what may a customer use | [`limits`] |
//! | how is that divided among tasks | `allocate` |
//! | what do they tell each other | [`message`] |
//! | who joined, reports, has what | [`controller`], [`config`] |
//! | how is that kept, for millions of pairs | `ledger`, `entry`, `packed` |
//! | what may be pushed when | `round`, [`pace`] |
//! | who may join when | [`joins`] |
//! | what may a task do before it was pushed anything | `unseen` |
//! | what does a task do in silence | [`fail_static`] |
//! | how does a task divide its part among parts of its own | `within` |

mod allocate;
pub mod config;
pub mod controller;
mod entry;
pub mod fail_static;
pub mod joins;
mod ledger;
pub mod limits;
pub mod message;
pub mod pace;
mod packed;
mod round;
mod unseen;
mod within;

pub use config::{FleetConfig, FleetConfigError};
pub use controller::Fleet;
pub use fail_static::{FailStatic, Silence, Standing};
pub use joins::{Crowd, Joins};
pub use limits::{Limits, NotNested};
pub use message::{Answer, Change, CustomerStatus, Full, Generation};
pub use message::{NotJoined, Round, Speaker, Taken, TaskId, Usage};
pub use pace::Pace;
pub use unseen::unseen_part;
pub use within::divide_within;
