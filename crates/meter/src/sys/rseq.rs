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
//! What the kernel demands of a descriptor, lest it kill the process: version 0, no flags, addresses
//! below the end of user memory, an abort address outside of the sequence, and right before the
//! abort address the signature with which the C library registered. Nobody jumps to the abort
//! address, so it need not be code. The descriptor is on the heap and never freed: a plug-in may be
//! unloaded with its statics while its threads' fields still point at them.
//!
//! What it does not see: switches inside system calls, on kernels newer than 6.18 (nobody can be in
//! a sequence there, so the kernel spares itself the look), and time that a hypervisor takes.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// What stands before every abort address on x86, for the kernel to check. From `sys/rseq.h`.
const SIGNATURE: u32 = 0x5305_3053;

/// Offsets in `struct rseq`, which are kernel ABI.
const CPU_ID_OFFSET: usize = 4;
const RSEQ_CS_OFFSET: usize = 8;

/// `struct rseq` up to and including `rseq_cs`.
const SIZE_MIN: u32 = 16;

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
        (size >= SIZE_MIN).then_some(Registration { offset })
    })
}

/// A symbol of a library that is already loaded. Asked for at run time, as linking to it would fail
/// with an older C library.
fn symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: `name` ends in a zero byte and lives through the call; RTLD_DEFAULT is a valid handle.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// The calling thread's control block.
fn thread_pointer() -> *const u8 {
    let pointer: *const u8;
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
        let area = thread_pointer().wrapping_offset(offset);
        let cpu_id = area.wrapping_add(CPU_ID_OFFSET).cast::<AtomicI32>();
        // SAFETY: the C library reserves `struct rseq` at this offset in each thread's block, 32
        // bytes aligned to 32, from before the thread's first instruction to after its last. Only
        // this thread and the kernel on its behalf write to it, hence atomically as seen from here.
        let registered = unsafe { (*cpu_id).load(Ordering::Relaxed) } >= 0;
        let rseq_cs = area.wrapping_add(RSEQ_CS_OFFSET).cast::<AtomicU64>();
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
mod tests {
    use super::*;

    /// Field by field what `rseq_get_rseq_cs` of the kernel refuses.
    #[test]
    fn the_kernel_accepts_the_descriptor() {
        assert_eq!(size_of::<Descriptor>() % 32, 0);
        let address = descriptor();
        assert_eq!(address % 32, 0);
        assert_eq!(descriptor(), address, "one for the process");
        let at = ptr::with_exposed_provenance::<Descriptor>(address as usize);
        // SAFETY: `descriptor` has made it, at this address, and nobody changes or frees it.
        let descriptor = unsafe { &*at };
        assert_eq!((descriptor.version, descriptor.flags), (0, 0));
        assert_eq!(std::mem::offset_of!(Descriptor, start_ip), 8);
        assert_eq!(std::mem::offset_of!(Descriptor, post_commit_offset), 16);
        assert_eq!(std::mem::offset_of!(Descriptor, abort_ip), 24);
        let user_end = 1_u64 << 47;
        assert!(descriptor.start_ip + descriptor.post_commit_offset < user_end);
        assert!(descriptor.abort_ip < user_end);
        // No instruction pointer is inside: ip - start < offset is never true.
        assert_eq!(descriptor.post_commit_offset, 0);
        let from_start = descriptor.abort_ip.wrapping_sub(descriptor.start_ip);
        assert!(from_start >= descriptor.post_commit_offset, "the abort address is outside");
        let signature = ptr::with_exposed_provenance::<u32>(descriptor.abort_ip as usize - 4);
        // SAFETY: it is the first word of the descriptor's own `abort`.
        assert_eq!(unsafe { signature.read() }, SIGNATURE);
    }

    #[test]
    fn the_blind_watch_stays_armed() {
        assert!(Watch::BLIND.is_armed());
        Watch::BLIND.arm();
        assert!(Watch::BLIND.is_armed());
    }

    /// Waiting is a switch out. Kernels up to 6.18 ring for it, newer ones need not; but no kernel
    /// may leave anything else than our address or zero.
    #[test]
    fn the_field_holds_our_address_or_zero() {
        let Some(watch) = Watch::here() else { return };
        watch.arm();
        std::thread::spawn(|| {}).join().unwrap();
        // SAFETY: as in `is_armed`.
        let field = unsafe { (*watch.rseq_cs).load(Ordering::Relaxed) };
        assert!(field == 0 || field == watch.ours, "{field:#x}");
    }

    #[test]
    fn each_thread_has_its_own() {
        let here = Watch::here().map(|watch| watch.rseq_cs.addr());
        let there = std::thread::spawn(|| Watch::here().map(|watch| watch.rseq_cs.addr()));
        let there = there.join().unwrap();
        assert_eq!(here.is_some(), there.is_some());
        assert!(here.is_none() || here != there);
    }
}
