//! Looks at every part once a second, and remembers for whoever comes.
//!
//! A thread of its own does the looking, so that the page moves on while the runtime is busy, and
//! whoever asks reads what is there: a hundred viewers cost the task no more looks than one. When
//! the router is gone the thread ends, within a second.
//!
//! **When a source panics** the others go on: the part is shown as failed, with what it said, the
//! panic is counted, and it is looked at again a second later. Its charts have a gap.

use super::Source;
use super::api::{Event, Explanation, Kind, Snapshot, State, Update};
use super::history::History;
use super::look::wall_ms;
use core::any::Any;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// How often. Eyes want no more, and fifteen minutes at ten times the rate would be megabytes.
const PERIOD: Duration = Duration::from_secs(1);
/// What a page lists, and more than it shows. Of one kind, so that a storm of refusals does not
/// push out what changed before it.
const EVENTS_MAX: usize = 256;

/// All parts.
pub(super) struct Hub {
    parts: Vec<Part>,
    began_ms: u64,
    /// Counts the looks.
    looks: watch::Sender<u64>,
}

struct Part {
    name: String,
    /// Held while it looks, and while it explains.
    source: Mutex<Box<dyn Source>>,
    seen: Mutex<Seen>,
}

/// What was seen of a part.
#[derive(Default)]
struct Seen {
    snapshot: Snapshot,
    history: History,
    /// With the time of the look that found them.
    changes: VecDeque<(u64, Event)>,
    refusals: VecDeque<(u64, Event)>,
    /// Looks that panicked.
    panics: u64,
}

impl Hub {
    pub(super) fn new(sources: Vec<(String, Box<dyn Source>)>) -> Self {
        let part = |(name, source)| Part {
            name,
            source: Mutex::new(source),
            seen: Mutex::new(Seen::default()),
        };
        let parts = sources.into_iter().map(part).collect();
        Self { parts, began_ms: wall_ms(), looks: watch::Sender::new(0) }
    }

    /// Begins to look, and goes on until the hub is dropped.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.look();
        let hub = Arc::downgrade(self);
        let run = move || {
            let mut due = Instant::now();
            loop {
                due += PERIOD;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let Some(hub) = hub.upgrade() else { return };
                hub.look();
                // Whoever was stopped for a while does not look in haste to make up for it.
                due = due.max(Instant::now().checked_sub(PERIOD).unwrap_or(due));
            }
        };
        std::thread::Builder::new().name("tidegate-admin".to_owned()).spawn(run)?;
        Ok(())
    }

    /// Looks at every part.
    pub(super) fn look(&self) {
        for part in &self.parts {
            // What it leaves behind is its own, and it is asked again whatever that is.
            let looked = catch_unwind(AssertUnwindSafe(|| lock(&part.source).look()));
            let seen = &mut *lock(&part.seen);
            match looked {
                Ok((snapshot, events)) => {
                    let found_ms = self.show(part, seen, snapshot);
                    seen.history.push(&seen.snapshot);
                    seen.keep(found_ms, events);
                }
                Err(panic) => {
                    seen.panics += 1;
                    let failed = seen.failed(said(&*panic));
                    self.show(part, seen, failed);
                }
            }
        }
        self.looks.send_modify(|looks| *looks = looks.wrapping_add(1));
    }

    /// Has `snapshot` seen as that of `part`; returns its time.
    fn show(&self, part: &Part, seen: &mut Seen, mut snapshot: Snapshot) -> u64 {
        snapshot.part.clone_from(&part.name);
        snapshot.parts = self.parts.iter().map(|part| part.name.clone()).collect();
        env!("CARGO_PKG_VERSION").clone_into(&mut snapshot.version);
        snapshot.began_ms = self.began_ms;
        // Rows are told apart by their time.
        snapshot.at_ms = snapshot.at_ms.max(seen.snapshot.at_ms.saturating_add(1));
        seen.snapshot = snapshot;
        seen.snapshot.at_ms
    }

    /// How often looking has panicked, by part.
    pub(super) fn panics(&self) -> Vec<(String, u64)> {
        let panics = |part: &Part| (part.name.clone(), lock(&part.seen).panics);
        self.parts.iter().map(panics).collect()
    }

    /// The number of the part of this name, or of the first if there is no name.
    pub(super) fn part(&self, name: Option<&str>) -> Option<usize> {
        match name {
            None => (!self.parts.is_empty()).then_some(0),
            Some(name) => self.parts.iter().position(|part| part.name == name),
        }
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.parts.iter().map(|part| part.name.as_str()).collect()
    }

    pub(super) fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }

    pub(super) fn snapshot(&self, part: usize) -> Snapshot {
        self.with(part, |seen| seen.snapshot.clone())
    }

    /// The last decisions, oldest first.
    pub(super) fn events(&self, part: usize) -> Vec<Event> {
        self.with(part, |seen| seen.events_after(0))
    }

    /// What there is to say to somebody who knows everything up to `after_ms`.
    pub(super) fn update(&self, part: usize, after_ms: u64) -> Update {
        self.with(part, |seen| Update {
            snapshot: seen.snapshot.clone(),
            series: seen.history.after(after_ms),
            events: seen.events_after(after_ms),
        })
    }

    /// Why it was decided; by whichever part has decided it.
    pub(super) fn explain(&self, id: &str) -> Option<Explanation> {
        self.parts.iter().find_map(|part| lock(&part.source).explain(id))
    }

    fn with<R: Default>(&self, part: usize, read: impl FnOnce(&Seen) -> R) -> R {
        self.parts.get(part).map(|part| read(&lock(&part.seen))).unwrap_or_default()
    }
}

impl Seen {
    fn keep(&mut self, found_ms: u64, events: Vec<Event>) {
        for event in events {
            let kept = if event.change { &mut self.changes } else { &mut self.refusals };
            if kept.len() == EVENTS_MAX {
                kept.pop_front();
            }
            kept.push_back((found_ms, event));
        }
    }

    /// What is shown of a part that cannot be looked at: its name, and no number of before.
    fn failed(&self, why: &str) -> Snapshot {
        let (now, before) = (wall_ms(), &self.snapshot.state);
        let since_ms = if before.kind == Kind::Failed { before.since_ms } else { now };
        let times = match self.panics {
            1 => String::new(),
            times => format!(", {times} times so far"),
        };
        let sentence = format!("Looking at it panicked{times}: {why}");
        Snapshot {
            service: self.snapshot.service.clone(),
            at_ms: now,
            state: State { kind: Kind::Failed, sentence, since_ms, ..State::default() },
            ..Snapshot::default()
        }
    }

    fn events_after(&self, after_ms: u64) -> Vec<Event> {
        let both = self.changes.iter().chain(&self.refusals);
        let new = both.filter(|(found_ms, _)| *found_ms > after_ms);
        let mut events: Vec<Event> = new.map(|(_, event)| event.clone()).collect();
        events.sort_by_key(|event| event.at_ms);
        events
    }
}

/// What a panic has said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

/// A source that panicked left at worst numbers of the second before.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
