//! From words to spans of time, shares and rates.

use super::fault::Fault;
use core::time::Duration;
use serde_saphyr::Spanned;
use tidegate_core::{CostRate, Ratio};

/// More CPUs than any fleet has, and far from where arithmetic ends.
const CPUS_MAX: f64 = 1e9;
/// In bytes, an exabyte: the same.
const MEMORY_MAX: f64 = 1e18;

/// A span within `from..=to`.
pub(super) fn duration(
    text: &Spanned<String>,
    from: Duration,
    to: Duration,
) -> Result<Duration, Fault> {
    let right =
        || format!("a span from {from:?} to {to:?} with its unit (ms, s, m, h), such as 5s");
    let found = span(&text.value).filter(|span| (from..=to).contains(span));
    found.ok_or_else(|| Fault::at(text, format!("`{}` does not belong here", text.value), right()))
}

fn span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let nanos = match unit.trim_start() {
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    let nanos = (number.parse::<f64>().ok()? * nanos).round();
    (nanos <= 365.0 * 86_400e9).then(|| Duration::from_nanos(nanos as u64))
}

/// `2%` or `0.02`.
pub(super) fn share(text: &Spanned<String>) -> Result<Ratio, Fault> {
    let value = match text.value.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse().map(|percent: f64| percent / 100.0),
        None => text.value.parse(),
    };
    let wrong = || {
        let what = format!("`{}` does not belong here", text.value);
        Fault::at(text, what, "a share of the limits from 0% to 100%, such as 2%")
    };
    Ratio::new(value.map_err(|_| wrong())?).map_err(|_| wrong())
}

/// A number of CPUs, whole or not.
pub(super) fn cpus(cpus: &Spanned<f64>) -> Result<CostRate, Fault> {
    let rate = CostRate::from_cpus(cpus.value).ok().filter(|_| cpus.value <= CPUS_MAX);
    rate.ok_or_else(|| {
        let what = format!("{} is no number of CPUs", cpus.value);
        Fault::at(cpus, what, "a number from 0 to a billion, such as 2.5; 0 blocks")
    })
}

/// Bytes with their unit, from 1 on.
pub(super) fn bytes(text: &Spanned<String>) -> Result<u64, Fault> {
    memory(&text.value).filter(|bytes| *bytes > 0).ok_or_else(|| {
        let what = format!("`{}` is no amount of memory", text.value);
        Fault::at(text, what, "a number with its unit (KiB, MiB, GiB, TiB), such as 1.5GiB")
    })
}

fn memory(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let shift = match unit.trim_start() {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let bytes = (number.parse::<f64>().ok()? * (1_u64 << shift) as f64).round();
    (bytes <= MEMORY_MAX).then_some(bytes as u64)
}

/// A size from 1 to `to`.
pub(super) fn size(found: &Spanned<u64>, to: usize) -> Result<usize, Fault> {
    let size = usize::try_from(found.value).ok().filter(|size| (1..=to).contains(size));
    size.ok_or_else(|| {
        let what = format!("`{}` does not belong here", found.value);
        Fault::at(found, what, format!("a whole number from 1 to {to}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_saphyr::Location;

    fn said<T>(value: T) -> Spanned<T> {
        Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
    }

    #[test]
    fn spans_and_shares_by_the_table() {
        for (text, millis) in [
            ("5ms", Some(5)),
            ("2.5 s", Some(2_500)),
            ("1m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("1.2.3s", None),
            ("1e3s", None),
            ("99999999h", None),
        ] {
            assert_eq!(span(text), millis.map(Duration::from_millis), "{text}");
        }
        for (text, percent) in [("2%", Some(2)), ("0.5", Some(50)), ("100 %", Some(100))]
            .into_iter()
            .chain(["101%", "-1%", "NaN", "nan%", "inf", "", "much"].map(|text| (text, None)))
        {
            let found = share(&said(text.to_owned())).ok();
            assert_eq!(found, percent.map(Ratio::percent), "{text}");
        }
        for (text, bytes) in [
            ("1KiB", Some(1_024)),
            ("1.5 GiB", Some(1_610_612_736)),
            ("2TiB", Some(2_199_023_255_552)),
            ("0MiB", None),
            ("5", None),
            ("5GB", None),
            ("-1GiB", None),
            ("1e3GiB", None),
            ("9999999TiB", None),
        ] {
            assert_eq!(super::bytes(&said(text.to_owned())).ok(), bytes, "{text}");
        }
        let second = Duration::from_secs(1);
        assert!(duration(&said("2s".to_owned()), Duration::ZERO, second).is_err());
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(cpus(&said(wrong)).is_err(), "{wrong}");
        }
        assert!(size(&said(0), 5).is_err() && size(&said(6), 5).is_err());
    }
}
