//! Load that does not wait for answers.
//!
//! Requests start at times that were drawn beforehand, whatever became of the ones before, and
//! their latency counts from then: what a request waits for a connection, or for this process, it
//! waits. At the deadline the caller gives up, as callers do; the server may not notice.

use super::callers::{Callers, Said};
use super::server::App;
use crate::Outcome;
use std::net::SocketAddr;
use std::time::Duration;
use tidegate::Criticality;
use tidegate_core::rng::{Rng, SeededRng};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// Connections that are there from the start.
pub(crate) const CONNECTIONS: usize = 256;

/// Percent of all requests, highest criticality first.
const MIX: [(Criticality, u64); 4] = [
    (Criticality::CriticalPlus, 10),
    (Criticality::Critical, 40),
    (Criticality::SheddablePlus, 30),
    (Criticality::Sheddable, 20),
];

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A 200 within the deadline.
    Good,
    /// An answer that says no.
    Refused,
    /// Nothing within the deadline.
    Late,
    /// No connection, or one that broke, or another answer.
    Failed,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) criticality: Criticality,
    /// When it was to start, in seconds since the phase began.
    pub(crate) start: f64,
    /// Seconds since then.
    pub(crate) latency: f64,
    pub(crate) end: End,
}

/// How many answers there were.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers {
    /// 200.
    pub(crate) good: u64,
    pub(crate) others: u64,
}

/// Callers of one server.
#[derive(Clone)]
pub(crate) struct Load(Callers);

impl Load {
    pub(crate) async fn new(app: App, address: SocketAddr, callers: usize) -> Outcome<Self> {
        Ok(Self(Callers::new(app, address, callers).await?))
    }

    /// Closes what is idle.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// `callers` ask again as soon as they are answered, for `duration`.
    pub(crate) async fn closed(&self, callers: usize, duration: Duration) -> Outcome<Answers> {
        let until = Instant::now() + duration;
        let callers: Vec<JoinHandle<Outcome<Answers>>> = (0..callers)
            .map(|_| {
                let load = self.clone();
                tokio::spawn(async move {
                    let mut answers = Answers::default();
                    while Instant::now() < until {
                        match load.0.ask(Criticality::Critical).await? {
                            Said::Good => answers.good += 1,
                            Said::Refused | Said::Other => answers.others += 1,
                        }
                    }
                    Ok(answers)
                })
            })
            .collect();
        let mut answers = Answers::default();
        for caller in callers {
            let Answers { good, others } = caller.await??;
            answers.good += good;
            answers.others += others;
        }
        Ok(answers)
    }

    /// `rate` requests a second on average, for `seconds` from `begin` on. Returns when the last
    /// has been sent.
    pub(crate) async fn open(
        &self,
        rate: f64,
        seconds: f64,
        begin: Instant,
        rng: &mut SeededRng,
    ) -> Vec<JoinHandle<Answer>> {
        let mut answers = Vec::with_capacity((rate * seconds * 1.2) as usize);
        let mut at = 0.0;
        loop {
            // Of times between events of a Poisson process.
            at -= (1.0 - rng.unit()).ln() / rate;
            if at >= seconds {
                break;
            }
            let criticality = draw(rng);
            let start = begin + Duration::from_secs_f64(at);
            if start > Instant::now() {
                sleep_until(start).await;
            }
            let load = self.clone();
            answers.push(tokio::spawn(async move {
                let end = match timeout_at(start + DEADLINE, load.0.ask(criticality)).await {
                    Ok(Ok(Said::Good)) => End::Good,
                    Ok(Ok(Said::Refused)) => End::Refused,
                    Ok(_) => End::Failed,
                    Err(_) => End::Late,
                };
                let latency = start.elapsed().as_secs_f64();
                Answer { criticality, start: at, latency, end }
            }));
        }
        sleep_until(begin + Duration::from_secs_f64(seconds)).await;
        answers
    }
}

fn draw(rng: &mut SeededRng) -> Criticality {
    let mut left = rng.below(100);
    for (criticality, percent) in MIX {
        if left < percent {
            return criticality;
        }
        left -= percent;
    }
    Criticality::Sheddable
}
