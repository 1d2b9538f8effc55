//! Fifteen minutes of everything that charts show, one row a second, in bounded memory.
//!
//! A row is a time and a number for each column, in single precision: nobody sees more on a chart.
//! Columns are named by what they show (`offered`, `rejected.SHEDDABLE`, `signal.executor_load`)
//! and added as they appear; rows before that have none. With the most columns that there may be
//! this is `900 * (96 * 4 + 32)` bytes, less than 400 KB for each part.

use super::api::{Series, Snapshot};
use std::collections::VecDeque;

/// Fifteen minutes, once a second.
const ROWS_MAX: usize = 900;
/// Some thirty are always there, the rest is for signals, customers and services. What comes after
/// that is in the tables and not on charts.
const COLUMNS_MAX: usize = 96;
/// As many customers as a chart can show apart.
const CUSTOMERS_MAX: usize = 8;

/// The last fifteen minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    columns: Vec<String>,
    rows: VecDeque<Row>,
}

#[derive(Debug)]
struct Row {
    at_ms: u64,
    numbers: Vec<f32>,
}

impl History {
    /// Keeps what charts show of `snapshot`.
    pub(super) fn push(&mut self, snapshot: &Snapshot) {
        let mut numbers = vec![f32::NAN; self.columns.len()];
        columns(snapshot, |name, number| {
            let place = self.columns.iter().position(|column| column == name);
            let place = place.or_else(|| {
                let room = self.columns.len() < COLUMNS_MAX;
                room.then(|| {
                    self.columns.push(name.to_owned());
                    numbers.push(f32::NAN);
                    self.columns.len() - 1
                })
            });
            if let Some(place) = place {
                numbers[place] = brief(number);
            }
        });
        if self.rows.len() == ROWS_MAX {
            self.rows.pop_front();
        }
        numbers.shrink_to_fit();
        self.rows.push_back(Row { at_ms: snapshot.at_ms, numbers });
    }

    /// The rows after `after_ms`.
    pub(super) fn after(&self, after_ms: u64) -> Series {
        let from = self.rows.partition_point(|row| row.at_ms <= after_ms);
        let known = |n: &f32| n.is_finite().then_some(*n);
        let row = |row: &Row| (row.at_ms, row.numbers.iter().map(known).collect());
        Series { columns: self.columns.clone(), rows: self.rows.range(from..).map(row).collect() }
    }
}

/// Four digits, which are fewer bytes to send and more than a chart shows.
fn brief(number: f64) -> f32 {
    if number == 0.0 || !number.is_finite() {
        return number as f32;
    }
    let scale = 10_f64.powi(3 - number.abs().log10().floor() as i32);
    ((number * scale).round() / scale) as f32
}

/// Calls `put` for each line of each chart.
fn columns(snapshot: &Snapshot, mut put: impl FnMut(&str, f64)) {
    let work = &snapshot.work;
    for (name, rate) in [
        ("offered", work.offered),
        ("admitted", work.admitted),
        ("good", work.good),
        ("failed", work.failed),
        ("capacity", work.capacity.unwrap_or(f64::NAN)),
        ("inflight", work.inflight as f64),
        ("p50", snapshot.latency.p50_ms.unwrap_or(f64::NAN)),
        ("p90", snapshot.latency.p90_ms.unwrap_or(f64::NAN)),
        ("p99", snapshot.latency.p99_ms.unwrap_or(f64::NAN)),
        ("amplification", snapshot.retries.amplification.unwrap_or(f64::NAN)),
    ] {
        put(name, rate);
    }
    for level in &snapshot.levels {
        put(&format!("admitted.{}", level.criticality), level.admitted);
        put(&format!("rejected.{}", level.criticality), level.rejected);
    }
    for signal in &snapshot.signals {
        put(&format!("signal.{}", signal.name), signal.ratio.unwrap_or(f64::NAN));
    }
    for row in &snapshot.rejections {
        put(&format!("reason.{} {}", row.reason, row.place), row.rate);
    }
    for customer in snapshot.customers.iter().take(CUSTOMERS_MAX) {
        put(&format!("used.{}", customer.name), customer.used);
    }
    for client in &snapshot.clients {
        let probabilities = client.throttle.iter().map(|throttle| throttle.probability);
        put(&format!("throttle.{}", client.service), probabilities.fold(0.0, f64::max));
        put(&format!("budget.{}", client.service), client.budget_left);
    }
    for queue in &snapshot.queues {
        put(&format!("queued.{}", queue.service), queue.queued as f64);
        put(&format!("pace.{}", queue.service), queue.pace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::api::Signal;

    fn at(second: u64, signal: &str) -> Snapshot {
        let mut snapshot = Snapshot { at_ms: second * 1_000, ..Snapshot::default() };
        snapshot.work.offered = second as f64;
        let signal = Signal { name: signal.into(), ratio: Some(0.5), ..Signal::default() };
        snapshot.signals.push(signal);
        snapshot
    }

    #[test]
    fn it_has_a_quarter_of_an_hour_and_no_more() {
        let mut history = History::default();
        for second in 1..=1_000 {
            history.push(&at(second, "load"));
        }
        let all = history.after(0);
        assert_eq!(all.rows.len(), 900);
        assert_eq!((all.rows[0].0, all.rows[899].0), (101_000, 1_000_000));
        assert_eq!(all.columns[0], "offered");
        assert_eq!(all.rows[899].1[0], Some(1_000.0));
        // What is not known is a gap, not a zero.
        let latency = all.columns.iter().position(|name| name == "p99").unwrap_or_default();
        assert_eq!(all.rows[899].1[latency], None);
        assert_eq!(history.after(998_000).rows.len(), 2);
        assert_eq!(history.after(u64::MAX).rows.len(), 0);
    }

    #[test]
    fn columns_come_as_they_appear_and_stop_at_the_most() {
        let mut history = History::default();
        for second in 1..=200 {
            history.push(&at(second, &format!("s{second}")));
        }
        let all = history.after(0);
        assert_eq!(all.columns.len(), COLUMNS_MAX);
        assert!(all.rows[0].1.len() < all.rows[150].1.len());
        assert_eq!(all.rows[199].1.len(), COLUMNS_MAX);
    }

    #[test]
    fn four_digits_are_left() {
        for (number, expected) in
            [(1_234_567.0, 1_235_000.0), (0.123_456, 0.123_5), (0.0, 0.0), (-7.0, -7.0)]
        {
            assert_eq!(brief(number), expected);
        }
        assert!(brief(f64::NAN).is_nan());
    }
}
