//! What the system and the machine offer, with unsafe code where it takes that, and nothing else.
//!
//! Each part has a twin for systems that lack it, with the same names, so that nothing outside of
//! this module depends on the platform. Miri knows neither instructions nor most system calls, and
//! gets the twins.

pub(crate) mod cpu;

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[allow(unsafe_code)]
pub(crate) mod tsc;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
pub(crate) mod tsc {
    //! No counter that we know how to trust.

    pub(crate) fn may_be_read() -> bool {
        false
    }

    #[inline]
    pub(crate) fn read() -> u64 {
        0
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri)))]
#[allow(unsafe_code)]
pub(crate) mod rseq;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri))))]
pub(crate) mod rseq {
    //! Nobody registers `struct rseq` here (musl), or we do not know its signature.

    /// Sees no switch.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Watch;

    impl Watch {
        pub(crate) const BLIND: Self = Self;

        pub(crate) fn here() -> Option<Self> {
            None
        }

        #[inline]
        pub(crate) fn is_armed(self) -> bool {
            true
        }

        pub(crate) fn arm(self) {}
    }
}
