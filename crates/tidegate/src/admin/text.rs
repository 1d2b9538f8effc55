//! Numbers as people read them, and names as addresses have them.

/// Three digits, and no zeroes behind the point: `19`, `2.3`, `0.085`, `12400`.
pub(super) fn number(number: f64) -> String {
    if !number.is_finite() {
        return "unknown".to_owned();
    }
    let magnitude = if number == 0.0 { 0 } else { number.abs().log10().floor() as i32 };
    let decimals = usize::try_from(2 - magnitude).unwrap_or(0).min(6);
    let text = format!("{number:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// What stands in an address as `%20` and the like; what makes no sense stays as it is.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |byte: &u8| char::from(*byte).to_digit(16);
        let escaped = match after {
            [high, low, ..] if *first == b'%' => hex(high).zip(hex(low)),
            _ => None,
        };
        let byte = escaped.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{decoded, number};

    #[test]
    fn names_in_addresses_are_read_as_they_were_meant() {
        for (text, name) in [
            ("plain", "plain"),
            ("seen%20from%2Foutside", "seen from/outside"),
            ("caf%C3%A9", "café"),
            ("a+b", "a+b"),
            ("100%", "100%"),
            ("%2", "%2"),
            ("%zz%41", "%zzA"),
            ("%FF", "\u{fffd}"),
        ] {
            assert_eq!(decoded(text), name, "{text}");
        }
    }

    #[test]
    fn three_digits_and_no_more() {
        for (value, text) in [
            (0.0, "0"),
            (19.04, "19"),
            (2.3, "2.3"),
            (0.085, "0.085"),
            (0.085_44, "0.0854"),
            (12_400.4, "12400"),
            (1.999, "2"),
            (-3.25, "-3.25"),
            (f64::NAN, "unknown"),
            (1e-9, "0"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
