//! Four rates in sixteen bytes.
//!
//! A leader keeps four times four rates for each pair of task and customer, and of pairs it has
//! millions. In 64 bits a rate has more digits than anybody needs: a CPU is 10^9 of them, and what
//! is reported wavers by a tenth. So they are kept as floating point numbers of 32 bits, 27 of them
//! for the digits:
//!
//! ```text
//! code < 2^27          is the rate itself
//! other codes          2^26..2^27 times a power of two
//! the highest          no limit
//! ```
//!
//! Codes are ordered as the rates are. What a rate loses is less than one part in 60 million, and
//! nothing at all below an eighth of a CPU. What is given away is rounded **down** and what is held
//! is rounded **up**: sums stay on the safe side of their limits. Grants are rounded before they
//! are pushed, so that what is counted is what the task was told, to the last digit.
//!
//! IEEE 754's single precision has 24 bits of digits, and loses 60 ns of every CPU.

use super::allocate::Levels;

/// Digits of a rate.
const DIGITS: u32 = 27;
/// The code of no limit.
const UNLIMITED: u32 = u32::MAX;
/// The code after the last rate: a power of two of 38 would leave 64 bits.
const END: u32 = 39 << (DIGITS - 1);

/// Four rates, lowest criticality first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Packed([u32; 4]);

impl Packed {
    pub(super) const ZERO: Self = Self([0; 4]);

    /// At most these.
    pub(super) fn floor(levels: Levels) -> Self {
        Self(levels.map(floor))
    }

    /// At least these.
    pub(super) fn ceil(levels: Levels) -> Self {
        Self(levels.map(ceil))
    }

    pub(super) fn get(self) -> Levels {
        self.0.map(rate)
    }

    /// The higher of both at every level.
    pub(super) fn higher(self, other: Self) -> Self {
        Self(core::array::from_fn(|l| self.0[l].max(other.0[l])))
    }
}

const fn floor(rate: u64) -> u32 {
    if rate == u64::MAX {
        return UNLIMITED;
    }
    // None for rates that are their own code.
    let shift = (u64::BITS - DIGITS).saturating_sub(rate.leading_zeros());
    (shift << (DIGITS - 1)) + (rate >> shift) as u32
}

const fn ceil(exact: u64) -> u32 {
    let code = floor(exact);
    if rate(code) == exact {
        code
    } else if code + 1 == END {
        UNLIMITED
    } else {
        code + 1
    }
}

const fn rate(code: u32) -> u64 {
    if code < 1 << DIGITS {
        return code as u64;
    }
    if code == UNLIMITED {
        return u64::MAX;
    }
    let first = 1 << (DIGITS - 1);
    let shift = (code >> (DIGITS - 1)) - 1;
    ((code & (first - 1)) | first) as u64 * (1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_by_the_table() {
        let top = ((1 << 27) - 1) << 37;
        for (exact, down, up) in [
            (0, 0, 0),
            (1, 1, 1),
            ((1 << 27) - 1, (1 << 27) - 1, (1 << 27) - 1),
            (1 << 27, 1 << 27, 1 << 27),
            ((1 << 27) + 1, 1 << 27, (1 << 27) + 2),
            (5_000_000_000, 5_000_000_000, 5_000_000_000),
            (5_000_000_001, 5_000_000_000, 5_000_000_064),
            (top, top, top),
            (u64::MAX - 1, top, u64::MAX),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!((rate(floor(exact)), rate(ceil(exact))), (down, up), "{exact}");
        }
    }

    proptest! {
        #[test]
        fn what_is_lost_is_little_and_on_the_safe_side(exact: u64, bits in 0..64_u32) {
            let exact = exact >> bits;
            let (down, up) = (rate(floor(exact)), rate(ceil(exact)));
            prop_assert!(down <= exact && exact <= up);
            prop_assert!(exact - down <= exact >> 26);
            prop_assert!(up == u64::MAX || up - exact <= exact >> 26);
            prop_assert_eq!((rate(floor(down)), rate(ceil(up))), (down, up));
        }

        #[test]
        fn codes_are_ordered_as_rates_are(a: u64, b: u64, bits in 0..64_u32) {
            let (a, b) = (a >> bits, b >> bits);
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(floor(low) <= floor(high) && ceil(low) <= ceil(high));
            let higher = Packed([floor(a); 4]).higher(Packed([floor(b); 4]));
            prop_assert_eq!(higher.get(), [rate(floor(a.max(b))); 4]);
        }
    }
}
