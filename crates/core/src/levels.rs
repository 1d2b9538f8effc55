//! How much of each criticality gets through, in one word.
//!
//! Whatever a controller has worked out, the request path needs one number per criticality: the
//! share to let through. Four 16-bit shares fit into one `AtomicU64`, so publishing is one store,
//! all four are always of the same decision, and the check is one load, one shift and one compare.

use crate::criticality::Criticality;
use crate::rng::Rng;
use crate::sync::{AtomicU64, Ordering};

const BITS: usize = 16;

/// The share of each criticality that gets through.
///
/// A share is a count of 65,536ths, except that the highest value means all: a level is either
/// touched or it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels(u64);

impl Levels {
    /// Everything gets through.
    pub const OPEN: Self = Self(u64::MAX);
    /// Nothing does.
    pub const CLOSED: Self = Self(0);

    /// The shares by criticality, lowest first, from 0 to 1. What is not a number counts as 1:
    /// when in doubt, serve.
    pub fn from_shares(shares: [f64; Criticality::COUNT]) -> Self {
        let mut word = 0;
        for (i, share) in shares.into_iter().enumerate() {
            let bits = if share < 1.0 { (share * 65_536.0) as u16 } else { u16::MAX };
            word |= u64::from(bits) << (BITS * i);
        }
        Self(word)
    }

    /// The share of `criticality` that gets through, from 0 to 1.
    pub fn share(self, criticality: Criticality) -> f64 {
        match self.bits(criticality) {
            u16::MAX => 1.0,
            bits => f64::from(bits) / 65_536.0,
        }
    }

    /// Whether a request of `criticality` gets through, by the dice of `rng` where they are needed.
    #[inline]
    pub fn admits(self, criticality: Criticality, rng: &mut impl Rng) -> bool {
        match self.bits(criticality) {
            u16::MAX => true,
            0 => false,
            bits => (rng.next_u64() >> 48) < u64::from(bits),
        }
    }

    /// The same shares again from what [`Levels::bits`] gave, lowest criticality first.
    pub(crate) fn from_bits(bits: [u16; Criticality::COUNT]) -> Self {
        let words = bits.into_iter().enumerate();
        Self(words.fold(0, |word, (i, bits)| word | u64::from(bits) << (BITS * i)))
    }

    #[inline]
    pub(crate) const fn bits(self, criticality: Criticality) -> u16 {
        (self.0 >> (BITS * criticality.index())) as u16
    }
}

/// The gate that holds [`Levels`]: written by a controller, read by every request.
#[derive(Debug)]
pub struct LevelGate(AtomicU64);

impl LevelGate {
    /// A gate that lets everything through until it is told otherwise.
    pub fn new() -> Self {
        Self(AtomicU64::new(Levels::OPEN.0))
    }

    /// What requests see from now on.
    pub fn publish(&self, levels: Levels) {
        self.0.store(levels.0, Ordering::Relaxed);
    }

    /// What requests see now.
    #[inline]
    pub fn levels(&self) -> Levels {
        Levels(self.0.load(Ordering::Relaxed))
    }
}

impl Default for LevelGate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::rng::{Rng, SeededRng};
    use proptest::prelude::*;

    #[test]
    fn all_and_nothing_need_no_dice() {
        struct NoDice;
        impl Rng for NoDice {
            fn next_u64(&mut self) -> u64 {
                panic!("no dice were needed")
            }
        }
        let levels = Levels::from_shares([0.0, 0.0, 1.0, 1.0]);
        for (criticality, admitted) in Criticality::ALL.into_iter().zip([false, false, true, true])
        {
            assert_eq!(levels.admits(criticality, &mut NoDice), admitted);
        }
        assert_eq!(Levels::from_shares([1.0; 4]), Levels::OPEN);
        assert_eq!(Levels::from_shares([0.0; 4]), Levels::CLOSED);
        assert_eq!(Levels::from_shares([f64::NAN; 4]), Levels::OPEN);
        assert_eq!(Levels::from_shares([-1.0; 4]), Levels::CLOSED);
    }

    #[test]
    fn a_share_is_kept_to_a_hundredth() {
        let mut rng = SeededRng::new(3);
        let levels = Levels::from_shares([0.25, 0.5, 0.9, 1.0]);
        for criticality in Criticality::ALL {
            let admitted = (0..100_000).filter(|_| levels.admits(criticality, &mut rng)).count();
            let share = admitted as f64 / 100_000.0;
            assert!((share - levels.share(criticality)).abs() < 0.01, "{criticality}: {share}");
        }
    }

    proptest! {
        #[test]
        fn shares_come_back_to_one_part_in_65536(shares: [f64; 4]) {
            let levels = Levels::from_shares(shares);
            for (criticality, share) in Criticality::ALL.into_iter().zip(shares) {
                let wanted = if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) };
                prop_assert!((levels.share(criticality) - wanted).abs() <= 1.0 / 65_536.0);
            }
        }
    }
}
