//! What made no sense in what a peer sent.
//!
//! A header that cannot be understood counts as absent, and is counted. Readers therefore return
//! what they understood together with a set of [`Fault`]s; the shell adds one to the counter of
//! each. The set is two bytes: a peer that sends only nonsense costs no more than any other.

use core::fmt;

/// One kind of nonsense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Fault {
    /// A criticality that is none of the four names.
    BadCriticality,
    /// An attempt number that is no number, zero, or absurdly high.
    BadAttempt,
    /// A deadline that is no time.
    BadDeadline,
    /// A member of the baggage without a name or without a value.
    BadBaggage,
    /// More baggage than W3C asks anyone to carry. What is past the limit was not read.
    OversizedBaggage,
    /// Two headers, or one header twice, say different things.
    Contradictory,
    /// A load report that cannot be read, or with a number that is none.
    BadLoadReport,
    /// A customer named by a peer that may not speak for others. It was not believed.
    CustomerByStranger,
    /// A customer's name, from one who may give it, that is no name.
    BadCustomer,
    /// A priority outside of 0 to 7.
    BadPriority,
    /// More claimed than the ceiling of whoever claims it. It was lowered.
    AboveCeiling,
    /// An answer's word on when to retry that is no time.
    BadAdvice,
}

impl Fault {
    /// All kinds, for tables of counters.
    pub const ALL: [Self; 12] = [
        Self::BadCriticality,
        Self::BadAttempt,
        Self::BadDeadline,
        Self::BadBaggage,
        Self::OversizedBaggage,
        Self::Contradictory,
        Self::BadLoadReport,
        Self::CustomerByStranger,
        Self::BadCustomer,
        Self::BadPriority,
        Self::AboveCeiling,
        Self::BadAdvice,
    ];

    /// Position in [`Fault::ALL`]; the index into tables of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The code that stands in metrics and events.
    pub const fn code(self) -> &'static str {
        match self {
            Self::BadCriticality => "bad_criticality",
            Self::BadAttempt => "bad_attempt",
            Self::BadDeadline => "bad_deadline",
            Self::BadBaggage => "bad_baggage",
            Self::OversizedBaggage => "oversized_baggage",
            Self::Contradictory => "contradictory",
            Self::BadLoadReport => "bad_load_report",
            Self::CustomerByStranger => "customer_by_stranger",
            Self::BadCustomer => "bad_customer",
            Self::BadPriority => "bad_priority",
            Self::AboveCeiling => "above_ceiling",
            Self::BadAdvice => "bad_advice",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// A set of faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Faults(u16);

impl Faults {
    /// Everything made sense.
    pub const NONE: Self = Self(0);

    /// Puts `fault` in.
    pub const fn add(&mut self, fault: Fault) {
        self.0 |= 1 << fault as u16;
    }

    /// Puts `fault` in if `is` holds.
    pub const fn add_if(&mut self, is: bool, fault: Fault) {
        self.0 |= (is as u16) << fault as u16;
    }

    /// Those of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `fault` is in.
    pub const fn contains(self, fault: Fault) -> bool {
        self.0 >> fault as u16 & 1 == 1
    }

    /// Whether everything made sense.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are in, in the order of [`Fault::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |&fault| self.contains(fault))
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(1 << fault as u16)
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        faults.into_iter().fold(Self::NONE, |all, fault| all.union(fault.into()))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.iter().enumerate() {
            f.write_str(if n > 0 { "," } else { "" })?;
            f.write_str(fault.code())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        for (index, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault.index(), index);
            let only = Faults::from(fault);
            assert!(only.contains(fault));
            assert_eq!(only.iter().collect::<Vec<_>>(), [fault]);
        }
        let both: Faults = [Fault::BadDeadline, Fault::BadAttempt].into_iter().collect();
        assert_eq!(both.to_string(), "bad_attempt,bad_deadline");
        assert!(!both.is_empty() && Faults::NONE.is_empty());
        let codes: std::collections::BTreeSet<_> = Fault::ALL.map(Fault::code).into();
        assert_eq!(codes.len(), Fault::ALL.len());
    }
}
