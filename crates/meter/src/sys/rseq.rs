//! Whether this thread was switched out since we last looked, at the price of one load.
//!
//! The C library registers with the kernel a `struct rseq` for each thread, for restartable
//! sequences. Its field `rseq_cs` may point to a descriptor of the sequence that is being run. When
//! a thread that has been switched out in the middle of its code goes on, the kernel looks: if it
//! was inside of the sequence, it goes on at the abort address; if not, the kernel sets the field
//! to zero, as that sequence is over. We describe a sequence of no instructions. No thread can ever
//! be inside, so the kernel never does anything but set the field to zero: a bell that rings once.
//!
//! ```text
//! arm:       rseq_cs = address of our descriptor
//! is armed:  rseq_cs == address of our descriptor
//! ```
//!
//! The comparison is with our own address rather than with zero, as others (tcmalloc) put theirs
//! there: then we have seen nothing, which is safe to take for a switch. They in turn write the
//! field at the start of each sequence of theirs and so do not mind ours.
//!
//! What the kernel demands of a descriptor, lest it kill the process: version 0, no flags,
//! addresses below the end of user memory, an abort address outside of the sequence, and right
//! before the abort address the signature with which the C library registered. Nobody jumps to the
//! abort address, so it need not be code. The descriptor is on the heap and never freed: a plug-in
//! may be unloaded with its statics while its threads' fields still point at them.
//!
//! What it does not see: switches inside system calls, on kernels newer than 6.18 (nobody can be in
//! a sequence there, so the kernel spares itself the look), and time that a hypervisor takes.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// What stands before every abort address on x86, for the kernel to check. From `sys/rseq.h`.
const SIGNATURE: u32 = 0x5305_3053;

/// The beginning of `struct rseq`, which is kernel ABI. There may be more after it.
#[repr(C)]
struct Area {
    _cpu_id_start: AtomicI32,
    /// Negative where registering failed.
    cpu_id: AtomicI32,
    rseq_cs: AtomicU64,
}

/// `struct rseq_cs`: the kernel asks for this order and this alignment.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
    /// The signature and the word that [`abort_ip`](Self::abort_ip) points at. Not the kernel's
    /// business, but it is handy to have them in one piece.
    abort: [u32; 2],
}

/// Leaks a descriptor and returns its address. Once in a process.
fn descriptor() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let descriptor = Box::leak(Box::new(Descriptor {
            version: 0,
            flags: 0,
            start_ip: 0,
            post_commit_offset: 0,
            abort_ip: 0,
            abort: [SIGNATURE, 0],
        }));
        descriptor.abort_ip = ptr::from_ref(&descriptor.abort[1]).expose_provenance() as u64;
        // An empty sequence anywhere: here, where it cannot be above the end of user memory.
        descriptor.start_ip = descriptor.abort_ip;
        // The kernel reads it through the address from now on.
        ptr::from_ref(descriptor).expose_provenance() as u64
    })
}

/// What the C library says about where its threads have `struct rseq`.
#[derive(Debug, Clone, Copy)]
struct Registration {
    /// From the thread pointer.
    offset: isize,
}

/// None with a C library before 2.35, or where registering failed or was switched off.
fn registration() -> Option<Registration> {
    static FOUND: OnceLock<Option<Registration>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let offset = symbol(c"__rseq_offset")?;
        let size = symbol(c"__rseq_size")?;
        // SAFETY: the C library that defines a symbol of this name (reserved for it) documents it
        // as `const ptrdiff_t`; it is set before `main` and never written again.
        let offset = unsafe { offset.cast::<isize>().read() };
        // SAFETY: likewise, `const unsigned int`.
        let size = unsafe { size.cast::<u32>().read() };
        (size as usize >= size_of::<Area>()).then_some(Registration { offset })
    })
}

/// A symbol of a library that is already loaded. Asked for at run time, as linking to it would fail
/// with an older C library.
fn symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: `name` ends in a zero byte and lives through the call; RTLD_DEFAULT is a valid
    // handle.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// The calling thread's control block.
fn thread_pointer() -> *const c_void {
    let pointer: *const c_void;
    // SAFETY: the x86-64 ABI for thread-local storage keeps at fs:0 the address of that very place,
    // in every thread that the C library knows. The instruction only reads memory and changes no
    // flags.
    unsafe {
        core::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, preserves_flags, readonly, pure)
        );
    }
    pointer
}

/// One thread's bell. Not to be sent to another thread, which the raw pointer sees to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    rseq_cs: *const AtomicU64,
    ours: u64,
}

/// Never cleared by anybody.
static SILENT: AtomicU64 = AtomicU64::new(0);

impl Watch {
    /// Sees no switch. It is what a thread has before it looks, and without rseq.
    pub(crate) const BLIND: Self = Self { rseq_cs: &raw const SILENT, ours: 0 };

    /// That of the calling thread, if the kernel knows its `struct rseq`.
    pub(crate) fn here() -> Option<Self> {
        let Registration { offset } = registration()?;
        let area = thread_pointer().wrapping_byte_offset(offset).cast::<Area>();
        // SAFETY: the C library reserves `struct rseq` at this offset in each thread's block,
        // aligned to 32 bytes, from before the thread's first instruction to after its last. What
        // of it we look at is written by this thread and by the kernel on its behalf, atomically.
        let (cpu_id, rseq_cs) = unsafe { (&(*area).cpu_id, &raw const (*area).rseq_cs) };
        let registered = cpu_id.load(Ordering::Relaxed) >= 0;
        registered.then(|| Self { rseq_cs, ours: descriptor() })
    }

    /// From here on, [`is_armed`](Self::is_armed) until the thread is switched out.
    pub(crate) fn arm(self) {
        if !self.is_armed() {
            // SAFETY: the field is there as long as the thread is (see `here`), and `self` is on
            // that thread, as it cannot be sent. `SILENT` never comes here: it is always armed.
            // What is stored is the address of a valid descriptor that is never freed, which is
            // all that the kernel asks for. The thread is in nobody's sequence: those consist of
            // their own instructions, and this is none of them.
            unsafe { (*self.rseq_cs).store(self.ours, Ordering::Relaxed) };
        }
    }

    /// Whether the thread has been running, as far as can be seen, since [`arm`](Self::arm).
    #[inline]
    pub(crate) fn is_armed(self) -> bool {
        // SAFETY: as for the store in `arm`; or it is `SILENT`, which is a static.
        unsafe { (*self.rseq_cs).load(Ordering::Relaxed) == self.ours }
    }
}

#[cfg(test)]
mod tests;
