//! What happens while a scenario lasts.

use super::fault::{Fault, choices};
use super::keys;
use super::parts::Parts;
use super::read::{Fields, place};
use super::tree::Node;
use crate::world::spec::Change;
use core::ops::Range;
use core::time::Duration;
use tidegate_core::Timestamp;

/// What an event can do.
const ACTIONS: [&str; 8] = ["load", "rate", "speed", "cost", "fail_fast", "works", "down", "up"];

/// The changes that a list of events makes, in order of time.
pub(super) fn changes(node: &Node, parts: &Parts) -> Result<Vec<(Timestamp, Change)>, Fault> {
    let lasts = parts.world.lasts;
    let mut steps = Vec::new();
    for node in node.list("a list of events")? {
        let fields = node.fields(&keys::EVENT)?;
        let at = fields.need("at", "10s")?;
        let from = at.duration()?;
        if from > lasts {
            let what = format!("{from:?} is past the end at {lasts:?}");
            return Err(at.wrong(what, format!("a moment from 0s to {lasts:?}")));
        }
        let until =
            fields.or("for", None, |node| node.some_time().map(|span| Some(from + span)))?;
        let mut event = Event { parts, from, until, steps: Vec::new() };
        event.read(&fields)?;
        if event.steps.is_empty() {
            let what = "this event changes nothing";
            return Err(node.wrong(what, format!("one of {}", choices(&ACTIONS))));
        }
        steps.append(&mut event.steps);
    }
    steps.sort_by_key(|step| step.at);
    restore_rates(&mut steps, parts);
    Ok(steps.into_iter().map(|step| (Timestamp::ZERO + step.at, step.change)).collect())
}

/// A change and what it has to do with others.
struct Step {
    at: Duration,
    change: Change,
    /// Whether it ends by itself.
    passing: bool,
    /// Whether it is such an end.
    ends: bool,
}

/// A surge that ends leaves the rate that would be without it: the last one that was to stay.
fn restore_rates(steps: &mut [Step], parts: &Parts) {
    let mut stays: Vec<f64> = parts.world.clients.iter().map(|client| client.rate).collect();
    for step in steps {
        if let Change::Rate { client, rate } = &mut step.change {
            if step.ends {
                *rate = stays[*client];
            } else if !step.passing {
                stays[*client] = *rate;
            }
        }
    }
}

struct Event<'a> {
    parts: &'a Parts,
    from: Duration,
    until: Option<Duration>,
    steps: Vec<Step>,
}

impl Event<'_> {
    fn read(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        if let Some(node) = fields.get("load") {
            for entry in node.entries("multiples of capacity by client, such as { web: 10 }")? {
                let client = place(&entry.key, entry.at, "client", &self.parts.names.clients)?;
                let capacity = self.parts.capacity(self.parts.capacity_of[client]);
                self.rate(client, entry.node.portion()? * capacity);
            }
        }
        if let Some(node) = fields.get("rate") {
            for entry in node.entries("rates by client, such as { web: 100/s }")? {
                let client = place(&entry.key, entry.at, "client", &self.parts.names.clients)?;
                self.rate(client, entry.node.per_second()?);
            }
        }
        if let Some(node) = fields.get("speed") {
            for entry in node.entries("speeds by service, such as { api: 50% }")? {
                let service = place(&entry.key, entry.at, "service", &self.parts.names.services)?;
                let factor = entry.node.speed()?;
                let tasks = self.tasks(fields, service)?;
                let change = |factor| Change::Speed { service, tasks: tasks.clone(), factor };
                self.push(change(factor), change(1.0));
            }
        }
        if let Some(node) = fields.get("cost") {
            for entry in node.entries("multiples of cost by service, such as { api: 3 }")? {
                let service = place(&entry.key, entry.at, "service", &self.parts.names.services)?;
                let factor = entry.node.portion()?;
                let change = |factor| Change::Cost { service, factor };
                self.push(change(factor), change(1.0));
            }
        }
        self.fail_fast(fields, "fail_fast", true)?;
        self.fail_fast(fields, "works", false)?;
        self.down(fields, "down", true)?;
        self.down(fields, "up", false)
    }

    fn fail_fast(&mut self, fields: &Fields<'_>, key: &str, fails: bool) -> Result<(), Fault> {
        for (service, tasks) in self.those(fields, key)? {
            let change = |fails| Change::FailFast { service, tasks: tasks.clone(), fails };
            self.push(change(fails), change(!fails));
        }
        Ok(())
    }

    fn down(&mut self, fields: &Fields<'_>, key: &str, down: bool) -> Result<(), Fault> {
        for (service, tasks) in self.those(fields, key)? {
            let change = |down| Change::Down { service, tasks: tasks.clone(), down };
            self.push(change(down), change(!down));
        }
        Ok(())
    }

    /// The services under `key`, and which of their tasks.
    fn those(&self, fields: &Fields<'_>, key: &str) -> Result<Vec<(usize, Range<usize>)>, Fault> {
        let Some(node) = fields.get(key) else { return Ok(Vec::new()) };
        let those = node.one_or_more().iter().map(|node| {
            let service = node.one_of("service", &self.parts.names.services)?;
            Ok((service, self.tasks(fields, service)?))
        });
        those.collect()
    }

    /// The tasks of `service` that an event is about: all unless it says otherwise.
    fn tasks(&self, fields: &Fields<'_>, service: usize) -> Result<Range<usize>, Fault> {
        let count = self.parts.world.services[service].tasks.len();
        fields.or("tasks", 0..count, |node| node.tasks(count))
    }

    fn rate(&mut self, client: usize, rate: f64) {
        let change = Change::Rate { client, rate };
        self.push(change.clone(), change);
    }

    fn push(&mut self, change: Change, back: Change) {
        let passing = self.until.is_some();
        self.steps.push(Step { at: self.from, change, passing, ends: false });
        let end = |at| Step { at, change: back, passing: false, ends: true };
        self.steps.extend(self.until.map(end));
    }
}
