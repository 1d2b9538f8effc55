//! CPU time as the system counts it: exact, and a system call.

use std::time::Duration;

/// CPU time of the calling thread, in nanoseconds from its start. None where there is no such
/// clock.
#[inline]
pub(crate) fn thread() -> Option<u64> {
    imp::thread()
}

/// CPU time of all threads of this process, those that have ended included.
pub(crate) fn process() -> Option<Duration> {
    imp::process()
}

#[cfg(all(
    any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"),
    not(miri)
))]
// The other systems have nothing to wrap.
#[allow(clippy::unnecessary_wraps)]
mod imp {
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    #[inline]
    pub(super) fn thread() -> Option<u64> {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // Seconds since a thread began fill 64 bits of nanoseconds after 584 years.
        Some((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64))
    }

    pub(super) fn process() -> Option<Duration> {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

#[cfg(not(all(
    any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"),
    not(miri)
)))]
mod imp {
    use std::time::Duration;

    pub(super) fn thread() -> Option<u64> {
        None
    }

    pub(super) fn process() -> Option<Duration> {
        None
    }
}
