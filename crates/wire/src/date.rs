//! Dates as HTTP writes them, in `retry-after`, `date` and `expires`.
//!
//! RFC 9110 has three forms, and asks everyone to read all of them:
//!
//! ```text
//! Sun, 06 Nov 1994 08:49:37 GMT      the one to write
//! Sunday, 06-Nov-94 08:49:37 GMT     RFC 850
//! Sun Nov  6 08:49:37 1994           asctime
//! ```
//!
//! The day of the week is not looked at: it says nothing that the date does not.

use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Reads a date. Years before 1970 are none that anyone waits for.
pub fn parse(text: &[u8]) -> Option<SystemTime> {
    let mut words = text.split(|&b| b == b' ').filter(|word| !word.is_empty());
    let weekday = words.next()?;
    let (day, month, year, time) = if weekday.ends_with(b",") {
        let date = words.next()?;
        if date.contains(&b'-') {
            let mut parts = date.split(|&b| b == b'-');
            let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
            let year = short_year(digits(year, 2)?);
            (day, month, year, words.next()?)
        } else {
            (date, words.next()?, digits(words.next()?, 4)?, words.next()?)
        }
    } else {
        let (month, day, time) = (words.next()?, words.next()?, words.next()?);
        (day, month, digits(words.next()?, 4)?, time)
    };
    let zone_is_right = if weekday.ends_with(b",") { words.next()? == b"GMT" } else { true };
    if !zone_is_right || words.next().is_some() {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let day = digits(day, day.len().clamp(1, 2))?;
    let mut clock = time.split(|&b| b == b':').map(|part| digits(part, 2));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let real = (1..=days_in(month, year)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && clock.next().is_none();
    let days = days_since_1970(year, month, day).filter(|_| real)?;
    let secs = ((days * 24 + hour) * 60 + minute) * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}

fn digits(text: &[u8], length: usize) -> Option<u64> {
    (text.len() == length && text.iter().all(u8::is_ascii_digit)).then_some(())?;
    crate::text::number(text)
}

/// Two digits stand for the year of that ending from 1970 on: clocks with such dates are old, and
/// nobody asks to wait until 2070.
const fn short_year(year: u64) -> u64 {
    if year < 70 { 2000 + year } else { 1900 + year }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in(month: u64, year: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let before = year.checked_sub(1)?;
    let leap_days = before / 4 - before / 100 + before / 400;
    // 477 leap days before 1970.
    let years = year.checked_sub(1970)? * 365 + leap_days - 477;
    let months: u64 = (1..month).map(|month| days_in(month, year)).sum();
    Some(years + months + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_forms_of_one_moment() {
        let moment = UNIX_EPOCH + Duration::from_secs(784_111_777);
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(moment), "{text}");
        }
    }

    #[test]
    fn dates_by_hand() {
        for (text, secs) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thu, 01 Jan 1970 00:01:60 GMT", 120),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
            ("Fri, 31 Dec 2027 23:59:59 GMT", 1_830_297_599),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(UNIX_EPOCH + Duration::from_secs(secs)));
        }
        for nonsense in [
            "",
            "tomorrow",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 GMT GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 2100 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1994 08:49:37:00 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
        ] {
            assert_eq!(parse(nonsense.as_bytes()), None, "{nonsense:?}");
        }
    }
}
