//! The time-stamp counter: one instruction, no system call, and on any machine whose kernel uses it
//! as its own clock the same on all cores, at one rate, asleep or awake.

use rustix::process::{TimeStampCounterReadability, time_stamp_counter_readability};

/// Whether this process may read the counter at all. Debuggers that replay, and some sandboxes,
/// make the instruction a fatal signal.
pub(crate) fn may_be_read() -> bool {
    // A kernel that does not know the question does not know how to forbid it either.
    time_stamp_counter_readability()
        .map_or(true, |readable| readable == TimeStampCounterReadability::Readable)
}

/// The counter. Call it only where [`may_be_read`] says yes.
///
/// Neither this nor what stands around it needs a fence: that the processor reads a few dozen
/// cycles early or late is far below what is measured, and the compiler does not move it across
/// accesses of memory that it cannot see through.
#[inline]
pub(crate) fn read() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. It reads a register, touches no memory
    // and has no precondition; where it is forbidden, the process gets a signal, which is no
    // undefined behaviour.
    unsafe { core::arch::x86_64::_rdtsc() }
}
