//! What stands before a service besides its gate: a queue of batch work, an edge, copies of
//! answers, and who answers for its health.
//!
//! All belong to shells (the proxy has them), which know their numbers and say them when asked.

use super::calls::Asked;
use super::list::{Metric, Read, Rows, Unit};

/// Where a queue of batch work stands.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Queue {
    /// Requests that wait.
    pub queued: u64,
    /// How many may.
    pub queue_max: u64,
    /// Bytes of those that wait.
    pub bytes: u64,
    /// Requests that were handed on and have not come back.
    pub outstanding: u64,
    /// How many may be.
    pub window: f64,
    /// Requests a second that go on at present.
    pub pace: f64,
    /// Requests that were handed on.
    pub sent: u64,
    /// Requests that backends have refused and that wait again.
    pub again: u64,
    /// Requests that found no room, or had to make some.
    pub full: u64,
    /// Requests whose deadline passed while they waited, or would have.
    pub late: u64,
    /// Requests whose callers left while they waited.
    pub left: u64,
    /// What holds the pace where it is, in a sentence.
    pub sentence: String,
}

/// What an edge has done, or another that counts, by what it is called.
pub type EdgeCounts = Vec<(&'static str, u64)>;

/// Copies of answers, for where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// How many there are.
    pub count: u64,
    /// What they take, with those that are being made.
    pub bytes: u64,
    /// What was done with them, by what it is called.
    pub events: EdgeCounts,
}

/// Every metric of these.
#[rustfmt::skip]
pub(super) static METRICS: [Metric<Asked>; 11] = [
    Metric::new("tidegate_batch_queued", Unit::Requests, "Requests that wait in a queue",
        Read::Level(|asked, rows| queues(asked, |queue| queue.queued, rows))).by(&["service"]),
    Metric::new("tidegate_batch_queued_bytes", Unit::None, "Bytes of those",
        Read::Level(|asked, rows| queues(asked, |queue| queue.bytes, rows))).by(&["service"]),
    Metric::new("tidegate_batch_outstanding", Unit::Requests,
        "Requests that were handed on from a queue and have not come back",
        Read::Level(|asked, rows| queues(asked, |queue| queue.outstanding, rows)))
        .by(&["service"]),
    Metric::new("tidegate_batch_window", Unit::Requests,
        "How many may be, as the backends take them",
        Read::Gauge(|asked, rows| queues(asked, |queue| queue.window, rows))).by(&["service"]),
    Metric::new("tidegate_batch_pace", Unit::None, "Requests a second that a queue hands on",
        Read::Gauge(|asked, rows| queues(asked, |queue| queue.pace, rows))).by(&["service"]),
    Metric::new("tidegate_batch_requests", Unit::Events("request"),
        "Requests that came to a queue, by what became of them",
        Read::Counter(fates)).by(&["service", "fate"]),
    Metric::new("tidegate_edge_events", Unit::Events("event"),
        "What an edge has taken out and refused",
        Read::Counter(|asked: &Asked, rows| events(&asked.edge, rows))).by(&["event"]),
    Metric::new("tidegate_stale_copies", Unit::None, "Copies of answers that are kept",
        Read::Level(|asked: &Asked, rows| if let Some(copies) = &asked.copies {
            rows(&[], copies.count);
        })),
    Metric::new("tidegate_stale_bytes", Unit::None, "What they take",
        Read::Level(|asked: &Asked, rows| if let Some(copies) = &asked.copies {
            rows(&[], copies.bytes);
        })),
    Metric::new("tidegate_stale_events", Unit::Events("event"),
        "Copies that were kept, given out and forgotten",
        Read::Counter(|asked: &Asked, rows| if let Some(copies) = &asked.copies {
            events(&copies.events, rows);
        })).by(&["event"]),
    Metric::new("tidegate_health_datagrams", Unit::Events("event"),
        "Questions for health by datagram, by what became of them",
        Read::Counter(|asked: &Asked, rows| events(&asked.datagrams, rows))).by(&["event"]),
];

fn events(counts: &EdgeCounts, rows: Rows<'_, u64>) {
    for (event, count) in counts {
        rows(&[event], *count);
    }
}

fn queues<T>(asked: &Asked, read: fn(&Queue) -> T, rows: Rows<'_, T>) {
    for (service, queue) in &asked.queues {
        rows(&[service], read(queue));
    }
}

fn fates(asked: &Asked, rows: Rows<'_, u64>) {
    for (service, queue) in &asked.queues {
        for (fate, count) in [
            ("sent", queue.sent),
            ("again", queue.again),
            ("full", queue.full),
            ("late", queue.late),
            ("left", queue.left),
        ] {
            rows(&[service, fate], count);
        }
    }
}
