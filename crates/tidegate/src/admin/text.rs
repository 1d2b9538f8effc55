//! Numbers as people read them.

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

#[cfg(test)]
mod tests {
    use super::number;

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
