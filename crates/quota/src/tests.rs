//! The book and its members together, in virtual time, with real gates in between.

mod faults;
mod followers;
mod partitions;
mod shares;
mod world;
