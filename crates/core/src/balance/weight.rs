//! What a backend's load reports say it can do.
//!
//! ```text
//! weight = rate / (utilization + errors/rate x penalty)
//! ```
//!
//! A backend that does 100 requests a second at half its utilization could do 200; that is its
//! weight. Failed requests are not work done, so a share of failures counts as utilization. The
//! formula, the defaults and the rules for when a weight may be used are those of gRPC's
//! `weighted_round_robin` and of Envoy, so that a fleet with mixed clients is balanced alike.
//!
//! A report is a stranger's word: a number that is negative, not finite or absurdly large drops the
//! whole report, and the return value says so.

use crate::units::Timestamp;
use core::time::Duration;

/// No task does a million million requests a second, and no utilization is that high: more is a
/// mistake, and would drown every other number in a sum.
const REPORTED_MAX: f64 = 1e12;

/// Weights outside are not used. With the numbers of a report in range these are rates of less
/// than a request in thirty years, or utilizations of less than a millionth of a millionth.
const WEIGHTS: core::ops::RangeInclusive<f64> = 1e-9..=1e24;

/// From this share of failures on, utilization is not that of a task at work.
const FAILING: f64 = 0.1;

/// What a backend says about itself, in the terms of an ORCA load report.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// Requests per second, also those that failed.
    pub rps: f64,
    /// Errors per second.
    pub eps: f64,
    /// Utilization as the application sees it; if it is zero, the next counts.
    pub application_utilization: f64,
    /// CPU used over CPU reserved.
    pub cpu_utilization: f64,
}

impl LoadReport {
    /// The weight that follows, and the utilization that stands in it, failures included; nothing
    /// if the report has no rate or no utilization.
    fn weight(&self, penalty: f64) -> Result<Option<(f64, f64)>, ()> {
        let numbers = [self.rps, self.eps, self.application_utilization, self.cpu_utilization];
        if !numbers.iter().all(|n| (0.0..=REPORTED_MAX).contains(n)) {
            return Err(());
        }
        let utilization = if self.application_utilization > 0.0 {
            self.application_utilization
        } else {
            self.cpu_utilization
        };
        if self.rps <= 0.0 || utilization <= 0.0 {
            return Ok(None);
        }
        let utilization = utilization + self.eps / self.rps * penalty;
        let weight = self.rps / utilization;
        Ok(WEIGHTS.contains(&weight).then_some((weight, utilization)))
    }
}

/// What became of a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportFate {
    /// It gives a weight.
    Taken,
    /// It says nothing that a weight could be made of: no requests, or no utilization. The weight
    /// before it stays, until that is too old.
    NoWeight,
    /// A number in it is negative, not finite or absurdly large. Nothing of it was used.
    Invalid,
    /// The backend is not in the set, or the policy does not use reports.
    Unused,
}

/// The weight of one backend, from its reports.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReportedWeight {
    value: f64,
    /// Failures included; unknown where many fail.
    utilization: Option<f32>,
    /// When the reports that came without a long break began, and when the last came.
    span: Option<(Timestamp, Timestamp)>,
}

impl ReportedWeight {
    pub(super) fn on_report(
        &mut self,
        report: &LoadReport,
        penalty: f64,
        expiry: Duration,
        now: Timestamp,
    ) -> ReportFate {
        match report.weight(penalty) {
            Err(()) => ReportFate::Invalid,
            Ok(None) => ReportFate::NoWeight,
            Ok(Some((weight, utilization))) => {
                self.value = weight;
                let failing = report.eps > FAILING * report.rps;
                self.utilization = (!failing).then_some(utilization as f32);
                self.span = Some(match self.span {
                    Some((first, last)) if now.since(last) < expiry => (first, last.max(now)),
                    _ => (now, now),
                });
                ReportFate::Taken
            }
        }
    }

    /// The weight, and the utilization that goes with it if few fail, if reports have been coming
    /// for at least `blackout` and the last is younger than `expiry`.
    pub(super) fn usable(
        &self,
        blackout: Duration,
        expiry: Duration,
        now: Timestamp,
    ) -> Option<(f64, Option<f64>)> {
        let (first, last) = self.span?;
        let counts = now.since(first) >= blackout && now.since(last) < expiry;
        counts.then_some((self.value, self.utilization.map(f64::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(rps: f64, eps: f64, application: f64, cpu: f64) -> LoadReport {
        LoadReport { rps, eps, application_utilization: application, cpu_utilization: cpu }
    }

    #[test]
    fn weights_by_hand() {
        for (rps, eps, application, cpu, penalty, weight) in [
            (100.0, 0.0, 0.0, 0.5, 1.0, Some(200.0)),
            (100.0, 0.0, 0.8, 0.5, 1.0, Some(125.0)),
            // A tenth fails: 0.5 + 0.1 x 1, then x 3.
            (100.0, 10.0, 0.0, 0.4, 1.0, Some(200.0)),
            (100.0, 10.0, 0.0, 0.2, 3.0, Some(200.0)),
            (100.0, 10.0, 0.0, 0.5, 0.0, Some(200.0)),
            (120.0, 120.0, 0.0, 0.2, 1.0, Some(100.0)),
            (300.0, 0.0, 1.5, 0.0, 1.0, Some(200.0)),
            (0.0, 0.0, 0.0, 0.5, 1.0, None),
            (100.0, 0.0, 0.0, 0.0, 1.0, None),
            (5e-324, 1e12, 0.0, 0.5, 1.0, None),
            (1e12, 0.0, 0.0, 5e-324, 1.0, None),
        ] {
            let found = report(rps, eps, application, cpu).weight(penalty).unwrap();
            match (found, weight) {
                (Some((found, utilization)), Some(weight)) => {
                    assert!((found - weight).abs() < 1e-9, "{found}");
                    assert!((found * utilization - rps).abs() < 1e-9, "{utilization}");
                }
                (found, weight) => assert_eq!(found.map(|(weight, _)| weight), weight),
            }
        }
    }

    #[test]
    fn one_bad_number_drops_the_report() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e13] {
            for field in 0..4 {
                let mut numbers = [100.0, 1.0, 0.5, 0.5];
                numbers[field] = bad;
                let [rps, eps, application, cpu] = numbers;
                assert_eq!(report(rps, eps, application, cpu).weight(1.0), Err(()));
            }
        }
    }

    #[test]
    fn a_weight_counts_after_the_blackout_and_until_it_expires() {
        let (blackout, expiry) = (Duration::from_secs(10), Duration::from_secs(180));
        let mut weight = ReportedWeight::default();
        let good = report(100.0, 0.0, 0.5, 0.0);
        let usable =
            |w: &ReportedWeight, secs| w.usable(blackout, expiry, Timestamp::from_secs(secs));
        let hear = |w: &mut ReportedWeight, secs| {
            w.on_report(&good, 1.0, expiry, Timestamp::from_secs(secs))
        };
        assert_eq!(usable(&weight, 50), None);
        assert_eq!(hear(&mut weight, 100), ReportFate::Taken);
        assert_eq!(usable(&weight, 109), None);
        assert_eq!(usable(&weight, 110), Some((200.0, Some(0.5))));
        hear(&mut weight, 200);
        assert_eq!(usable(&weight, 379), Some((200.0, Some(0.5))));
        assert_eq!(usable(&weight, 380), None);
        // Heard of again after too long a silence: the blackout begins anew.
        hear(&mut weight, 400);
        assert_eq!(usable(&weight, 409), None);
        assert_eq!(usable(&weight, 410), Some((200.0, Some(0.5))));
        // A report without a weight, or with nonsense, changes nothing.
        assert_eq!(
            weight.on_report(&LoadReport::default(), 1.0, expiry, Timestamp::from_secs(420)),
            ReportFate::NoWeight
        );
        let nonsense = report(f64::NAN, 0.0, 0.5, 0.0);
        let fate = weight.on_report(&nonsense, 1.0, expiry, Timestamp::from_secs(420));
        assert_eq!(fate, ReportFate::Invalid);
        assert_eq!(usable(&weight, 421), Some((200.0, Some(0.5))));
    }

    proptest! {
        #[test]
        fn no_bit_pattern_makes_a_weight_that_is_not_a_number(
            bits: [u64; 4],
            penalty in 0.0..100.0,
        ) {
            let [rps, eps, application, cpu] = bits.map(f64::from_bits);
            if let Ok(Some((weight, _))) = report(rps, eps, application, cpu).weight(penalty) {
                prop_assert!(WEIGHTS.contains(&weight));
            }
        }
    }
}
