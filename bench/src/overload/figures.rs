//! What is made of the answers of a phase.

use super::load::{Answer, DEADLINE, End};
use super::server::by_criticality;
use serde::Serialize;
use serde_json::Value;
use tidegate::Criticality;

/// Long enough for some dozen calm requests, short against the seconds that are told.
const BUCKET: f64 = 0.25;
/// One failure in twenty is calm still, as one more request in a bucket is.
const CALM: f64 = 0.95;

/// One contender in one phase.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(crate) contender: &'static str,
    /// Offered load as a multiple of the capacity.
    pub(crate) load: f64,
    /// Requests a second that the server can answer, as found just before.
    pub(crate) capacity: f64,
    /// Requests a second.
    pub(crate) offered: f64,
    /// Good answers that came within the phase, over the capacity.
    pub(crate) goodput: f64,
    /// The share of the server's CPU time that became good answers: what handlers have used on
    /// average in this phase, times good answers. What else the machine does moves it little.
    pub(crate) useful: f64,
    /// CPU time of a handler, in milliseconds.
    pub(crate) handler_ms: f64,
    /// CPUs that the server has used.
    pub(crate) cpus: f64,
    /// Of good answers, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The share of good answers by criticality, highest first.
    pub(crate) good: Vec<f64>,
    /// Shares of all.
    pub(crate) refused: f64,
    pub(crate) late: f64,
    pub(crate) failed: f64,
    /// Seconds until calm, in a calm phase.
    pub(crate) calm_after: Option<f64>,
    /// Good answers of all, by quarter of a second and by criticality, highest first.
    pub(crate) course: Vec<Vec<[u32; 2]>>,
    /// What the server has counted up to the end of the phase.
    pub(crate) counted: Value,
}

/// What is known of a phase besides its answers.
pub(crate) struct Phase {
    pub(crate) contender: &'static str,
    pub(crate) load: f64,
    pub(crate) seconds: f64,
    pub(crate) capacity: f64,
    /// Good answers that came within it, of whatever phase.
    pub(crate) good: u64,
    /// CPU time of a handler, in seconds.
    pub(crate) handler: f64,
    /// What the server has used.
    pub(crate) cpu_seconds: f64,
    pub(crate) counted: Value,
}

impl Phase {
    pub(crate) fn figures(self, answers: &[Answer]) -> Figures {
        let share = |end| {
            let count = answers.iter().filter(|answer| answer.end == end).count();
            count as f64 / answers.len().max(1) as f64
        };
        let mut latencies: Vec<f64> =
            answers.iter().filter(|a| a.end == End::Good).map(|a| a.latency).collect();
        latencies.sort_by(f64::total_cmp);
        let good = latencies.len() as f64;
        let quantile = |q: f64| {
            let at = (q * good) as usize;
            latencies.get(at.min(latencies.len().saturating_sub(1))).map_or(f64::NAN, |s| s * 1e3)
        };
        Figures {
            contender: self.contender,
            load: self.load,
            capacity: self.capacity,
            offered: answers.len() as f64 / self.seconds,
            goodput: self.good as f64 / self.seconds / self.capacity,
            useful: self.good as f64 * self.handler / self.cpu_seconds,
            handler_ms: self.handler * 1e3,
            cpus: self.cpu_seconds / self.seconds,
            p50_ms: quantile(0.50),
            p99_ms: quantile(0.99),
            good: by_criticality(|criticality| {
                let those = answers.iter().filter(|a| a.criticality == criticality);
                good_share(those)
            }),
            refused: share(End::Refused),
            late: share(End::Late),
            failed: share(End::Failed),
            calm_after: (self.load < 1.0).then(|| calm_after(answers, self.seconds)),
            course: course(answers, self.seconds),
            counted: self.counted,
        }
    }
}

fn course(answers: &[Answer], seconds: f64) -> Vec<Vec<[u32; 2]>> {
    let mut course = vec![by_criticality(|_| [0, 0]); buckets(seconds)];
    for answer in answers {
        let bucket = &mut course[(answer.start / BUCKET) as usize];
        let [good, all] = &mut bucket[Criticality::COUNT - 1 - answer.criticality.index()];
        *good += u32::from(answer.end == End::Good);
        *all += 1;
    }
    course
}

fn buckets(seconds: f64) -> usize {
    (seconds / BUCKET).ceil() as usize
}

/// How many good answers came in each phase of `seconds`, by when they came: what is in flight at
/// the end of a phase is work of the next.
pub(crate) fn good_by_phase(phases: &[Vec<Answer>], seconds: f64) -> Vec<u64> {
    let mut good = vec![0; phases.len()];
    for (phase, answers) in phases.iter().enumerate() {
        for answer in answers.iter().filter(|answer| answer.end == End::Good) {
            let came = phase + ((answer.start + answer.latency) / seconds) as usize;
            // After the last nobody counts.
            if let Some(good) = good.get_mut(came) {
                *good += 1;
            }
        }
    }
    good
}

fn good_share<'a>(answers: impl Iterator<Item = &'a Answer>) -> f64 {
    let (mut good, mut all) = (0_u32, 0_u32);
    for answer in answers {
        good += u32::from(answer.end == End::Good);
        all += 1;
    }
    f64::from(good) / f64::from(all)
}

/// The end of the last quarter of a second whose requests were not nearly all good.
fn calm_after(answers: &[Answer], seconds: f64) -> f64 {
    let calm = |bucket: usize| {
        let share = good_share(answers.iter().filter(|a| (a.start / BUCKET) as usize == bucket));
        // Where there were none, it is not a number.
        share.is_nan() || share >= CALM
    };
    let last = (0..buckets(seconds)).rev().find(|&bucket| !calm(bucket));
    last.map_or(0.0, |last| (last + 1) as f64 * BUCKET)
}

pub(crate) fn print(rows: &[Figures]) {
    println!(
        "{:<15} {:>5} {:>9} {:>8} {:>8} {:>5} {:>8} {:>8}  {:>5} {:>5} {:>5} {:>5} {:>8} {:>7} \
         {:>7} {:>6}",
        "",
        "load",
        "offered/s",
        "goodput",
        "useful",
        "CPUs",
        "p50 ms",
        "p99 ms",
        "C+",
        "C",
        "S+",
        "S",
        "refused",
        "late",
        "failed",
        "calm s"
    );
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    for row in rows {
        let good: Vec<String> = row.good.iter().map(|&share| percent(share)).collect();
        println!(
            "{:<15} {:>4}x {:>9.0} {:>8.2} {:>8.2} {:>5.2} {:>8.1} {:>8.1}  {:>5} {:>5} {:>5} \
             {:>5} {:>8.4} {:>7.3} {:>7.3} {:>6}",
            row.contender,
            row.load,
            row.offered,
            row.goodput,
            row.useful,
            row.cpus,
            row.p50_ms,
            row.p99_ms,
            good[0],
            good[1],
            good[2],
            good[3],
            row.refused,
            row.late,
            row.failed,
            row.calm_after.map_or_else(String::new, |s| format!("{s:.2}"))
        );
    }
    println!(
        "\nGoodput: 200 within {DEADLINE:?} over the capacity. Useful: the share of the server's \
         CPU time that became such answers.\nC+ to S: percent of each criticality that was \
         answered well."
    );
    for row in rows.iter().filter(|row| row.load > 5.0) {
        let (name, rate, handler) = (row.contender, row.capacity, row.handler_ms);
        println!("{name}: capacity {rate:.0}/s; a handler took {handler:.1} ms at ten times that");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(start: f64, latency: f64, end: End) -> Answer {
        Answer { criticality: Criticality::Critical, start, latency, end }
    }

    #[test]
    fn calm_begins_after_the_last_bucket_with_failures() {
        let mut answers: Vec<Answer> =
            (0..80).map(|n| answer(f64::from(n) / 40.0, 0.01, End::Good)).collect();
        assert_eq!(calm_after(&answers, 2.0), 0.0);
        // The bucket from 0.75 to 1 has ten requests, of which one fails.
        answers[35].end = End::Refused;
        assert_eq!(calm_after(&answers, 2.0), 1.0);
        answers[79].end = End::Late;
        assert_eq!(calm_after(&answers, 2.0), 2.0);
        assert_eq!(calm_after(&[], 2.0), 0.0);
    }

    #[test]
    fn answers_count_in_the_phase_in_which_they_come() {
        let good = |start, latency| answer(start, latency, End::Good);
        let first = vec![good(0.0, 0.5), good(1.8, 0.1), good(1.8, 0.4), good(1.9, 2.5)];
        let second = vec![good(1.0, 0.5), good(1.9, 0.2), answer(0.0, 0.5, End::Refused)];
        assert_eq!(good_by_phase(&[first, second, Vec::new()], 2.0), [2, 2, 2]);
    }

    #[test]
    fn figures_are_those_worked_out_by_hand() {
        let mut answers: Vec<Answer> =
            (1..=60).map(|n| answer(0.0, f64::from(n) / 1e3, End::Good)).collect();
        answers.extend([answer(0.0, 1.0, End::Late); 10]);
        answers.extend([answer(0.0, 0.1, End::Refused); 30]);
        let phase = Phase {
            contender: "nothing",
            load: 2.0,
            seconds: 2.0,
            capacity: 40.0,
            good: 50,
            handler: 0.02,
            cpu_seconds: 1.25,
            counted: json!(null),
        };
        let figures = phase.figures(&answers);
        assert_eq!((figures.offered, figures.goodput), (50.0, 0.625));
        // 50 of 20 ms are a second, of 1.25.
        assert!((figures.useful - 0.8).abs() < 1e-12);
        assert_eq!((figures.refused, figures.late, figures.failed), (0.3, 0.1, 0.0));
        assert!((figures.p50_ms - 31.0).abs() < 1e-9 && (figures.p99_ms - 60.0).abs() < 1e-9);
        assert_eq!((figures.good[1], figures.calm_after), (0.6, None));
        assert!(figures.good[0].is_nan());
    }
}
