//! Histograms for other tools.
//!
//! Two formats of `HdrHistogram` that its plotters and processors read: the distribution by
//! percentiles as text (`.hgrm`), in milliseconds; and the interval log, version 1.3, with one
//! compressed V2 histogram of nanoseconds by criticality (`.hlog`), from which any percentile can
//! be had later, and several runs be added.

use crate::stats::Stats;
use core::time::Duration;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;
use tidegate_core::Criticality;

/// How a histogram is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistogramFormat {
    /// Percentiles as text, in milliseconds.
    Percentiles,
    /// An interval log, in nanoseconds.
    Log,
}

impl HistogramFormat {
    /// By how the name of a file ends: `.hlog` and `.log` are logs, everything else percentiles.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("hlog" | "log") => Self::Log,
            _ => Self::Percentiles,
        }
    }
}

/// Why a histogram could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistogramError {
    /// The file could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The histogram could not be encoded.
    #[error("the histogram could not be encoded: {0}")]
    Encoding(String),
}

/// Writes latencies from the intended start, of what ended well.
pub fn write_histogram(
    stats: &Stats,
    length: Duration,
    format: HistogramFormat,
    out: &mut impl Write,
) -> Result<(), HistogramError> {
    match format {
        HistogramFormat::Percentiles => Ok(percentiles(&stats.latency(), out)?),
        HistogramFormat::Log => log(stats, length, out),
    }
}

/// Lines for each halving of what is left, as its own tools have.
const TICKS: u32 = 5;

/// Nanoseconds in a millisecond.
const MILLI: f64 = 1e6;

fn percentiles(histogram: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    for value in histogram.iter_quantiles(TICKS) {
        let reached = value.quantile_iterated_to();
        let count = histogram.count_between(0, value.value_iterated_to());
        write!(out, "{:12.3} {reached:2.12} {count:10}", value.value_iterated_to() as f64 / MILLI)?;
        if reached < 1.0 {
            write!(out, " {:14.2}", 1.0 / (1.0 - reached))?;
        }
        writeln!(out)?;
    }
    let (mean, deviation) = (histogram.mean() / MILLI, histogram.stdev() / MILLI);
    writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
    let (max, total) = (histogram.max() as f64 / MILLI, histogram.len());
    writeln!(out, "#[Max     = {max:12.3}, Total count    = {total:12}]")?;
    let buckets = histogram.buckets();
    writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {:12}]", 2_048)
}

fn log(stats: &Stats, length: Duration, out: &mut impl Write) -> Result<(), HistogramError> {
    let mut serializer = V2DeflateSerializer::new();
    let began = SystemTime::now().checked_sub(length).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("latency from the intended start, in nanoseconds, by criticality")
        .with_start_time(began)
        .with_base_time(began)
        .with_max_value_divisor(MILLI)
        .begin_log_with(out, &mut serializer)?;
    for (criticality, level) in Criticality::ALL.into_iter().zip(&stats.levels) {
        if !level.latency.is_empty() {
            let tag = Tag::new(criticality.name());
            writer
                .write_histogram(&level.latency, Duration::ZERO, length, tag)
                .map_err(|error| HistogramError::Encoding(format!("{error:?}")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn stats() -> Stats {
        let mut stats = Stats::default();
        for millis in 1..=1_000 {
            let span = Duration::from_millis(millis);
            let level =
                if millis % 4 == 0 { Criticality::Sheddable } else { Criticality::Critical };
            stats.record_ok(level, span, span, None);
        }
        stats
    }

    #[test]
    fn percentiles_are_read_back() {
        let mut out = Vec::new();
        write_histogram(&stats(), Duration::ZERO, HistogramFormat::Percentiles, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        // As HdrHistogram's plotter reads it: four columns of numbers until the first `#`.
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(rows.is_sorted_by_key(|row| row[0]) && rows.is_sorted_by_key(|row| row[1]));
        for row in &rows {
            // Of 1 to 1,000 ms, the value is what the count says, to three digits.
            assert!((row[0] - row[2]).abs() <= 1.0 + row[0] / 1_000.0, "{row:?}");
            assert!(row[2] >= (row[1] * 1_000.0).floor(), "{row:?}");
        }
        assert_eq!(rows.last().unwrap()[1..], [1.0, 1_000.0]);
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }

    #[test]
    fn a_log_is_read_back() {
        let (stats, second) = (stats(), Duration::from_secs(1));
        let mut out = Vec::new();
        write_histogram(&stats, second, HistogramFormat::Log, &mut out).unwrap();
        let mut read = Vec::new();
        for entry in IntervalLogIterator::new(&out) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let bytes = {
                    use base64::Engine as _;
                    let engine = base64::engine::general_purpose::STANDARD;
                    engine.decode(interval.encoded_histogram()).unwrap()
                };
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                read.push((interval.tag().unwrap().as_str().to_owned(), histogram));
            }
        }
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].0.as_str(), read[0].1.len()), ("SHEDDABLE", 250));
        assert_eq!(read[1].0, "CRITICAL");
        let written = &stats.levels[Criticality::Critical.index()].latency;
        for quantile in [0.1, 0.5, 0.99, 1.0] {
            let (a, b) = (&read[1].1, written);
            assert_eq!(a.value_at_quantile(quantile), b.value_at_quantile(quantile));
        }
    }

    #[test]
    fn the_name_of_a_file_says_which() {
        for (name, format) in [
            ("x.hgrm", HistogramFormat::Percentiles),
            ("x", HistogramFormat::Percentiles),
            ("x.hlog", HistogramFormat::Log),
        ] {
            assert_eq!(HistogramFormat::of(Path::new(name)), format);
        }
    }
}
