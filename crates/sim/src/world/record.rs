//! What is written down while a world runs.

use super::log::Log;
use core::time::Duration;
use tidegate_core::decision::Reason;
use tidegate_core::{Criticality, Timestamp};

const LEVELS: usize = Criticality::COUNT;

/// Width of a bin of the time series.
pub const BIN: Duration = Duration::from_millis(100);

/// Counts of latencies, by size: eighths of a power of two of a microsecond, from one microsecond
/// to an hour.
const LATENCY_BUCKETS: usize = 32 * 8;

/// A histogram of latencies. There is one for every second of every group, and most of them have
/// latencies of a few sizes: only the buckets from the least to the greatest are kept.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    first: usize,
    counts: Vec<u32>,
}

impl Latencies {
    #[inline]
    fn record(&mut self, latency: Duration) {
        let micros = (latency.as_nanos() / 1_000).clamp(8, 1 << 33) as u64;
        let power = micros.ilog2();
        let bucket = (power - 3) * 8 + ((micros >> (power - 3)) & 7) as u32;
        *self.count((bucket as usize).min(LATENCY_BUCKETS - 1)) += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, count) in (other.first..).zip(&other.counts) {
            *self.count(bucket) += count;
        }
    }

    #[inline]
    fn count(&mut self, bucket: usize) -> &mut u32 {
        let kept = self.first..self.first + self.counts.len();
        if !kept.contains(&bucket) {
            self.keep(bucket);
        }
        &mut self.counts[bucket - self.first]
    }

    /// Makes room for a bucket below or above the others.
    #[cold]
    fn keep(&mut self, bucket: usize) {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        let below = self.first.saturating_sub(bucket);
        self.counts.splice(0..0, core::iter::repeat_n(0, below));
        self.first -= below;
        let len = (bucket + 1 - self.first).max(self.counts.len());
        self.counts.resize(len, 0);
    }

    /// The latency that `share` of the answers did not exceed, to an eighth (rounded up).
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count: u64 = self.counts.iter().map(|&n| u64::from(n)).sum();
        let rank = ((share * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|&n| {
            seen += u64::from(n);
            seen >= rank
        })?;
        let bucket = self.first + bucket;
        let (power, sub) = (bucket as u64 / 8, bucket as u64 % 8);
        Some(Duration::from_micros((8 + sub + 1) << power))
    }
}

/// One bin of a group of clients.
#[derive(Debug, Clone, Default)]
pub struct ClientBin {
    /// Requests, by criticality, lowest first.
    pub offered: [u32; LEVELS],
    /// Answers in time to requests of this bin, by criticality.
    pub served: [u32; LEVELS],
    /// Answers in time that came in this bin.
    pub answers: u32,
    /// Of which degraded.
    pub degraded: u32,
    /// Attempts sent.
    pub attempts: u32,
    /// Requests that the client itself held back.
    pub throttled: u32,
    /// Requests that no datacenter had room for.
    pub unplaced: u32,
    /// Answers and requests by customer: `[offered, served]`, for the first customers.
    pub customers: Vec<[u32; 2]>,
}

/// One bin of a service.
#[derive(Debug, Clone, Default)]
pub struct ServiceBin {
    /// Attempts that arrived.
    pub arrived: u32,
    /// Attempts admitted.
    pub admitted: u32,
    /// Attempts refused, by criticality.
    pub rejected: [u32; LEVELS],
    /// Attempts refused, by reason: lame duck, deadline, quota, overload.
    pub reasons: [u32; 4],
    /// Refusals that said not to retry.
    pub dont_retry: u32,
    /// Work done that nobody waited for any more.
    pub wasted: u32,
}

/// One second of a customer, all services together, in CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QuotaSecond {
    /// What it may use.
    pub limit: f32,
    /// What tasks enforce together, at most.
    pub enforced: f32,
    /// What it used, as the quota server knows it.
    pub used: f32,
    /// What it asked for, as the quota server knows it.
    pub demand: f32,
}

/// One second of a service's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ConnectionSecond {
    /// How many are open at its end.
    pub open: u32,
    /// New ones.
    pub connects: u32,
    /// New ones that were refused.
    pub refused: u32,
    /// Questions for health that were answered.
    pub health_checks: u32,
    /// Questions for health that were not.
    pub health_dropped: u32,
    /// CPU time that all this took, in seconds on the reference machine.
    pub cpu: f32,
}

/// One second of a batch job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchSecond {
    /// Requests answered so far.
    pub done: u32,
    /// Workers that have not finished.
    pub workers_left: u32,
    /// Requests that wait in proxies.
    pub queued: u32,
    /// Requests that proxies have sent on.
    pub outstanding: u32,
}

/// One second of a server of leases, in requests a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DoormanSecond {
    /// What there is.
    pub capacity: f32,
    /// What clients hold in leases that have not ended.
    pub leased: f32,
    /// What they want.
    pub wanted: f32,
}

/// Everything that was written down.
#[derive(Debug)]
pub struct Record {
    /// By group, then by bin.
    pub clients: Vec<Vec<ClientBin>>,
    /// Latencies of answers in time, by group, then by second of the request.
    pub latencies: Vec<Vec<Latencies>>,
    /// By service, then by bin.
    pub services: Vec<Vec<ServiceBin>>,
    /// Busy core-seconds of each task of each service, by second.
    pub busy: Vec<Vec<Vec<f32>>>,
    /// By service, then by second; empty for services whose connections cost nothing.
    pub connections: Vec<Vec<ConnectionSecond>>,
    /// Connections open at the end of a second, by service, second and task; empty as above.
    pub connected: Vec<Vec<Vec<u32>>>,
    /// Requests that went to each datacenter, by group, datacenter and second; empty for groups
    /// whose service has no spillover.
    pub sent_to: Vec<Vec<Vec<u32>>>,
    /// By customer, then by second; empty without a quota server.
    pub quota: Vec<Vec<QuotaSecond>>,
    /// By group, then by second; empty for groups that are no batch jobs.
    pub batch: Vec<Vec<BatchSecond>>,
    /// By group: when a batch job was done.
    pub batch_finished: Vec<Option<Timestamp>>,
    /// By server of leases, then by second.
    pub doormen: Vec<Vec<DoormanSecond>>,
    /// Events that the world went through.
    pub events: u64,
    /// Requests that it saw.
    pub requests: u64,
    /// The most requests that were under way at once.
    pub inflight_max: usize,
    /// One by one, if the world was to keep that.
    pub log: Option<Box<Log>>,
}

impl Record {
    pub(crate) fn new(
        clients: usize,
        services: &[usize],
        lasts: Duration,
        customers: usize,
    ) -> Self {
        let bins = bin(Timestamp::ZERO + lasts) + 1;
        let seconds = lasts.as_secs() as usize + 1;
        let client_bin = ClientBin { customers: vec![[0; 2]; customers], ..ClientBin::default() };
        Self {
            clients: vec![vec![client_bin; bins]; clients],
            latencies: vec![vec![Latencies::default(); seconds]; clients],
            services: vec![vec![ServiceBin::default(); bins]; services.len()],
            busy: services.iter().map(|&tasks| vec![Vec::new(); tasks]).collect(),
            connections: vec![Vec::new(); services.len()],
            connected: vec![Vec::new(); services.len()],
            sent_to: vec![Vec::new(); clients],
            quota: Vec::new(),
            batch: vec![Vec::new(); clients],
            batch_finished: vec![None; clients],
            doormen: Vec::new(),
            events: 0,
            requests: 0,
            inflight_max: 0,
            log: None,
        }
    }

    /// With a log, or without.
    #[must_use]
    pub(crate) fn log(self, log: bool) -> Self {
        Self { log: log.then(Box::default), ..self }
    }

    #[inline]
    pub(crate) fn client(&mut self, group: usize, at: Timestamp) -> &mut ClientBin {
        let last = self.clients[group].len() - 1;
        &mut self.clients[group][bin(at).min(last)]
    }

    /// A group makes a request.
    #[inline]
    pub(crate) fn ask(
        &mut self,
        group: usize,
        criticality: Criticality,
        customer: usize,
        now: Timestamp,
    ) {
        self.requests += 1;
        let bin = self.client(group, now);
        bin.offered[criticality.index()] += 1;
        if let Some(counts) = bin.customers.get_mut(customer) {
            counts[0] += 1;
        }
    }

    /// A request that was `asked` then is answered in time.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        group: usize,
        criticality: Criticality,
        customer: usize,
        asked: Timestamp,
        degraded: bool,
        now: Timestamp,
    ) {
        let bin = self.client(group, now);
        bin.answers += 1;
        bin.degraded += u32::from(degraded);
        let bin = self.client(group, asked);
        bin.served[criticality.index()] += 1;
        if let Some(counts) = bin.customers.get_mut(customer) {
            counts[1] += 1;
        }
        self.latency(group, asked, now.since(asked));
    }

    #[inline]
    pub(crate) fn service(&mut self, service: usize, at: Timestamp) -> &mut ServiceBin {
        let last = self.services[service].len() - 1;
        &mut self.services[service][bin(at).min(last)]
    }

    #[inline]
    pub(crate) fn latency(&mut self, group: usize, asked: Timestamp, latency: Duration) {
        let seconds = &mut self.latencies[group];
        let second = (asked.as_nanos() / 1_000_000_000) as usize;
        let last = seconds.len() - 1;
        seconds[second.min(last)].record(latency);
    }

    /// Latencies of answers to requests asked between two moments.
    pub fn latencies(&self, group: usize, from: Timestamp, to: Timestamp) -> Latencies {
        let mut all = Latencies::default();
        let range =
            (from.as_nanos() / 1_000_000_000) as usize..(to.as_nanos() / 1_000_000_000) as usize;
        for second in self.latencies[group].get(range).unwrap_or_default() {
            all.merge(second);
        }
        all
    }
}

/// The bin that `at` falls into.
#[inline]
pub(crate) fn bin(at: Timestamp) -> usize {
    (at.as_nanos() / BIN.as_nanos() as u64) as usize
}

/// The column of a reason in [`ServiceBin::reasons`].
pub(crate) fn column(reason: Reason) -> usize {
    match reason {
        Reason::LameDuck => 0,
        Reason::DeadlinePassed => 1,
        Reason::OutOfQuota => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the order in which they come, and however far they are apart.
    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let micros = [900, 20, 3_000_000, 21, 5_000, 8, 400_000, 70, 1_100, 6_000];
        let (mut one, mut halves) = (Latencies::default(), [(); 2].map(|()| Latencies::default()));
        assert_eq!(one.quantile(0.5), None);
        for (number, micros) in micros.into_iter().enumerate() {
            one.record(Duration::from_micros(micros));
            halves[number % 2].record(Duration::from_micros(micros));
        }
        let [mut both, second] = halves;
        both.merge(&second);
        let mut sorted = micros;
        sorted.sort_unstable();
        for (rank, micros) in (1..).zip(sorted) {
            let share = f64::from(rank) / 10.0;
            let found = one.quantile(share).unwrap();
            let most = Duration::from_micros(micros + micros.div_ceil(8));
            assert!(found > Duration::from_micros(micros) && found <= most, "{share}: {found:?}");
            assert_eq!(both.quantile(share), Some(found));
        }
    }
}
