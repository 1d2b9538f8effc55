//! Quota across the fleet.

mod limits;

pub use limits::{Limits, NotNested};
