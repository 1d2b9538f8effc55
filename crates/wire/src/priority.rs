//! RFC 9218: how urgent a browser finds its request.
//!
//! `priority: u=5, i` comes from outside, so it may only lower: from urgency 5 on (7 is for what
//! nobody waits for) a request counts as `SHEDDABLE_PLUS` at most. Low numbers are common (a
//! browser asks for every page with `u=0`) and raise nothing.

use crate::text::{split_once, trim};
use tidegate_core::Criticality;
use tidegate_core::criticality::Clamped;

/// From here on a request is background work. RFC 9218 has 3 as the default, and 4 is what browsers
/// give to ordinary images.
pub const BACKGROUND_FROM: u8 = 5;

/// What a priority says about urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Nothing.
    Absent,
    /// 0 to 7, 0 being the most urgent.
    Is(u8),
    /// Something that is no urgency; RFC 9218 has it count as absent.
    Nonsense,
}

/// Reads the member `u` of a priority. As in every structured dictionary, the last one counts.
pub fn parse(value: &[u8]) -> Urgency {
    let mut found = Urgency::Absent;
    let mut quoted = false;
    let mut escaped = false;
    let members = value.split(|&b| {
        let skip = core::mem::take(&mut escaped);
        match b {
            b'\\' if quoted && !skip => escaped = true,
            b'"' if !skip => quoted = !quoted,
            _ => {}
        }
        b == b',' && !quoted
    });
    for member in members {
        let pair = split_once(member, b';').map_or(member, |(pair, _)| pair);
        found = match split_once(pair, b'=') {
            Some((name, value)) if trim(name) == b"u" => match trim(value) {
                [digit @ b'0'..=b'7'] => Urgency::Is(digit - b'0'),
                _ => Urgency::Nonsense,
            },
            // A name alone is a yes, and that is no urgency.
            None if trim(pair) == b"u" => Urgency::Nonsense,
            _ => found,
        };
    }
    found
}

/// What a request of this criticality counts as when its sender finds it this urgent.
pub fn lower(criticality: Criticality, urgency: Option<u8>) -> Clamped {
    let ceiling = match urgency {
        Some(BACKGROUND_FROM..) => Criticality::SheddablePlus,
        _ => Criticality::CriticalPlus,
    };
    criticality.clamp_to(ceiling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_by_hand() {
        for (text, urgency) in [
            ("u=5", Urgency::Is(5)),
            ("i, u=0", Urgency::Is(0)),
            (" u=7;x=1 ,i=?0", Urgency::Is(7)),
            ("u=1, u=6", Urgency::Is(6)),
            ("", Urgency::Absent),
            ("i", Urgency::Absent),
            ("uu=5", Urgency::Absent),
            ("a=\"x, u=7\"", Urgency::Absent),
            ("a=\"\\\", u=7\", u=2", Urgency::Is(2)),
            ("u", Urgency::Nonsense),
            ("u=8", Urgency::Nonsense),
            ("u=-1", Urgency::Nonsense),
            ("u=10", Urgency::Nonsense),
            ("u=\"3\"", Urgency::Nonsense),
        ] {
            assert_eq!(parse(text.as_bytes()), urgency, "{text:?}");
        }
    }

    #[test]
    fn urgency_lowers_and_never_raises() {
        for criticality in Criticality::ALL {
            for urgency in [None, Some(0), Some(4), Some(5), Some(7)] {
                let found = lower(criticality, urgency);
                assert!(found.criticality <= criticality);
                let background = urgency >= Some(5);
                assert_eq!(found.lowered, background && criticality > Criticality::SheddablePlus);
            }
        }
        let lowered = lower(Criticality::CriticalPlus, Some(5));
        assert_eq!(lowered.criticality, Criticality::SheddablePlus);
    }
}
