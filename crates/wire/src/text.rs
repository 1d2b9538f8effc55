//! Small pieces of parsing over bytes, without allocation.

/// Without spaces and tabs at both ends.
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let Some(start) = bytes.iter().position(|b| !blank(b)) else { return &[] };
    let end = bytes.iter().rposition(|b| !blank(b)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// Decimal digits and nothing else, up to `u64::MAX`; spaces around are allowed.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let digits = trim(bytes);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, &b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// The bytes that percent-encoded text stands for. What is no proper `%XX` stands for itself.
pub(crate) fn percent_decoded(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if let [b'%', high, low, after @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            rest = after;
            return Some(high << 4 | low);
        }
        let (&first, after) = rest.split_first()?;
        rest = after;
        Some(first)
    })
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// What is before the first `at` and what is after it.
pub(crate) fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = bytes.iter().position(|&b| b == at)?;
    Some((&bytes[..position], &bytes[position + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_by_hand() {
        assert_eq!(trim(b" \ta b\t "), b"a b");
        assert_eq!(trim(b" \t "), b"");
        for (text, value) in [
            ("0", Some(0)),
            (" 17 ", Some(17)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            ("1.0", None),
            ("1 2", None),
        ] {
            assert_eq!(number(text.as_bytes()), value, "{text:?}");
        }
        for (text, value) in
            [("a%5Fb", "a_b"), ("%5f", "_"), ("100%", "100%"), ("%zz%4", "%zz%4"), ("%%41", "%A")]
        {
            assert_eq!(percent_decoded(text.as_bytes()).collect::<Vec<_>>(), value.as_bytes());
        }
        assert_eq!(split_once(b"a=b=c", b'='), Some((&b"a"[..], &b"b=c"[..])));
        assert_eq!(split_once(b"abc", b'='), None);
    }
}
