//! Waking up on time.
//!
//! The runtime's own timers count whole milliseconds and round up: a generator that starts requests
//! by them is late by half a millisecond on average, which is more than many a server takes to
//! answer. On Linux a timer that the kernel keeps as a file is exact to some microseconds, at the
//! price of one system call for each time it is set. Elsewhere the runtime's have to do.

use std::io;
use std::time::Instant;

#[cfg(target_os = "linux")]
pub(super) struct Timer {
    file: tokio::io::unix::AsyncFd<rustix::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "for types that exchange their file; an OwnedFd keeps its own"
        )]
        let file = tokio::io::unix::AsyncFd::with_interest(file, tokio::io::Interest::READABLE)?;
        Ok(Self { file })
    }

    /// Waits until `at`; now and then less.
    pub(super) async fn until(&mut self, at: Instant) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tokio::task::yield_now().await;
            return Ok(());
        }
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let when = Itimerspec { it_interval: once, it_value: left };
        timerfd_settime(self.file.get_ref(), TimerfdTimerFlags::empty(), &when)?;
        // Setting it anew takes back what it has counted, so it need not be read.
        self.file.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn until(&mut self, at: Instant) -> io::Result<()> {
        tokio::time::sleep_until(at.into()).await;
        Ok(())
    }
}
