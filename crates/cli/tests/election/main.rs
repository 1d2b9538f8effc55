//! Three quota servers and a real etcd of three members, as processes, through everything that
//! happens to processes and networks.
//!
//! Whatever happens: a new leader is there within five seconds of the death of the old one, no two
//! lead at once, no customer uses more than 1.1 times its limit over ten seconds, no task is
//! without limits, and nobody who keeps to its limit is refused.
//!
//! `cargo xtask test` installs etcd and names the place of peers in `TIDEGATE_PEERS`. Where that is
//! not set these tests say that they were left out; where it is, an etcd that is missing fails
//! them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod etcd;
mod faults;
mod fleet;
mod judge;
mod limits;
mod relay;
mod servers;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whether anybody has asked for tests with peers; says so if not.
fn asked() -> bool {
    if std::env::var_os("TIDEGATE_PEERS").is_some() {
        return true;
    }
    let thread = std::thread::current().name().map(str::to_owned);
    let name = std::env::var("NEXTEST_TEST_NAME").ok().or(thread).unwrap_or_default();
    let line = format!("left out: {name}; `cargo xtask test` installs the peer for it\n");
    // Past the capture of those who run tests, who show nothing of a test that passes.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    false
}

/// Waits until it holds; returns for how long.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(40), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    began.elapsed()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
