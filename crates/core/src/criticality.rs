//! How much it matters that a request is served.
//!
//! When not everything can be done, something has to decide what goes first, and it has to decide
//! the same everywhere in a call tree. Four values are enough for that; more would have to be
//! configured in every place that looks at them. Criticality says nothing about latency: search
//! suggestions are both sheddable and urgent.
//!
//! A claim is believed only up to a **ceiling** that belongs to whoever makes it. A claim above the
//! ceiling is lowered to it, and the answer says so, so that it can be counted.

use core::fmt;
use core::str::FromStr;

/// How much it matters that a request is served. Ordered: `Sheddable < … < CriticalPlus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Criticality {
    /// May fail often, and now and then altogether.
    Sheddable = 0,
    /// May fail in part; batch jobs that try again minutes or hours later.
    SheddablePlus = 1,
    /// The default of production: users notice when it fails.
    #[default]
    Critical = 2,
    /// Users are hurt when it fails. Capacity is planned for this and `Critical`.
    CriticalPlus = 3,
}

impl Criticality {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// All, lowest first.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Sheddable, Self::SheddablePlus, Self::Critical, Self::CriticalPlus];

    /// Position from the lowest, 0 to 3; the index into per-criticality arrays.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The criticality at `index` from the lowest, if there is one.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sheddable => "SHEDDABLE",
            Self::SheddablePlus => "SHEDDABLE_PLUS",
            Self::Critical => "CRITICAL",
            Self::CriticalPlus => "CRITICAL_PLUS",
        }
    }

    /// Lowers this claim to `ceiling` if it is above, and says whether it was.
    pub fn clamp_to(self, ceiling: Self) -> Clamped {
        Clamped { criticality: self.min(ceiling), lowered: self > ceiling }
    }
}

/// A claim after its ceiling was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clamped {
    /// What the request counts as.
    pub criticality: Criticality,
    /// Whether more was claimed.
    pub lowered: bool,
}

/// A text that is none of the four names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a criticality: expected CRITICAL_PLUS, CRITICAL, SHEDDABLE_PLUS or SHEDDABLE")]
pub struct UnknownCriticality;

impl FromStr for Criticality {
    type Err = UnknownCriticality;

    /// Takes the four names, in any case, and nothing else.
    fn from_str(text: &str) -> Result<Self, UnknownCriticality> {
        Self::ALL
            .into_iter()
            .find(|c| c.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownCriticality)
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_index_and_name_agree() {
        assert!(Criticality::ALL.is_sorted());
        for (i, c) in Criticality::ALL.into_iter().enumerate() {
            assert_eq!(c.index(), i);
            assert_eq!(Criticality::from_index(i), Some(c));
            assert_eq!(c.name().parse(), Ok(c));
            assert_eq!(c.name().to_lowercase().parse(), Ok(c));
        }
        assert_eq!(Criticality::from_index(4), None);
        assert_eq!(Criticality::default(), Criticality::Critical);
    }

    #[test]
    fn only_the_four_names_are_taken() {
        for text in [
            "",
            "CRITICAL ",
            " CRITICAL",
            "CRITICAL-PLUS",
            "3",
            "CRITICAL_PLUS_PLUS",
            "ＣＲＩＴＩＣＡＬ",
        ] {
            assert_eq!(text.parse::<Criticality>(), Err(UnknownCriticality), "{text:?}");
        }
    }

    #[test]
    fn a_ceiling_lowers_and_says_so() {
        use Criticality::{Critical, CriticalPlus, Sheddable};
        assert_eq!(
            CriticalPlus.clamp_to(Critical),
            Clamped { criticality: Critical, lowered: true }
        );
        assert_eq!(
            Sheddable.clamp_to(Critical),
            Clamped { criticality: Sheddable, lowered: false }
        );
        assert_eq!(Critical.clamp_to(Critical), Clamped { criticality: Critical, lowered: false });
    }

    proptest! {
        #[test]
        fn no_text_panics_or_is_taken_by_accident(text in "\\PC*") {
            if let Ok(c) = text.parse::<Criticality>() {
                prop_assert!(c.name().eq_ignore_ascii_case(&text));
            }
        }
    }
}
