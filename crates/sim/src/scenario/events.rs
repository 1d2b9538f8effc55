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
const ACTIONS: [&str; 17] = [
    "load",
    "rate",
    "speed",
    "cost",
    "fail_fast",
    "works",
    "down",
    "up",
    "join",
    "restart",
    "limits",
    "quota_server",
    "lose",
    "regain",
    "datacenter_speed",
    "doorman",
    "doorman_capacity",
];

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
    // What ends makes way for what begins at that moment.
    steps.sort_by_key(|step| (step.at, !step.ends));
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
        self.down(fields, "up", false)?;
        self.join(fields)?;
        self.restart(fields)?;
        self.servers(fields)?;
        self.places(fields)
    }

    fn join(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        for (service, tasks) in self.those(fields, "join")? {
            if tasks.start == 0 {
                let what = "all tasks join later, so that nobody is there to begin with";
                let node = fields.get("tasks").unwrap_or(fields.node);
                return Err(node.wrong(what, "the last tasks, such as 300..301"));
            }
            self.once(Change::Join { service, tasks });
        }
        Ok(())
    }

    fn restart(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        let time =
            |key: &str, usual: u64| fields.or(key, Duration::from_secs(usual), Node::duration);
        // What a deployment takes: a few seconds to drain and to start, half a minute to warm up.
        let (lame_duck, down_for) = (time("lame_duck", 5)?, time("down_for", 5)?);
        let (cold_for, cold_speed) =
            (time("cold_for", 30)?, fields.or("cold_speed", 0.5, Node::speed)?);
        for (service, tasks) in self.those(fields, "restart")? {
            self.once(Change::Restart {
                service,
                tasks,
                lame_duck,
                down_for,
                cold_for,
                cold_speed,
            });
        }
        Ok(())
    }

    /// Quota servers and doormen: lost, back, or replaced by another.
    fn servers(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        const WORDS: [&str; 3] = ["lost", "back", "elect"];
        if let Some(node) = fields.get("quota_server") {
            match node.one_of("change of a server", &WORDS)? {
                2 => self.once(Change::QuotaElection),
                word => {
                    let lost = word == 0;
                    self.push(Change::QuotaServer { lost }, Change::QuotaServer { lost: !lost });
                }
            }
        }
        if let Some(node) = fields.get("limits") {
            for entry in node.entries("CPUs by customer, such as { good: 2 }")? {
                let customer =
                    place(&entry.key, entry.at, "customer", &self.parts.names.customers)?;
                let change = |limits| Change::Limits { customer, limits };
                let before = self.parts.world.customers[customer];
                self.push(change(super::parts::limits(&entry.node)?), change(before));
            }
        }
        if let Some(node) = fields.get("doorman") {
            for entry in node.entries("changes by doorman, such as { rate: lost }")? {
                let server = place(&entry.key, entry.at, "doorman", &self.parts.names.doormen)?;
                match entry.node.one_of("change of a server", &WORDS)? {
                    2 => self.once(Change::DoormanElection { server }),
                    word => {
                        let change = |lost| Change::Doorman { server, lost };
                        self.push(change(word == 0), change(word != 0));
                    }
                }
            }
        }
        if let Some(node) = fields.get("doorman_capacity") {
            for entry in node.entries("rates by doorman, such as { rate: 100/s }")? {
                let server = place(&entry.key, entry.at, "doorman", &self.parts.names.doormen)?;
                let change = |capacity| Change::DoormanCapacity { server, capacity };
                let before = self.parts.world.doormen[server].capacity;
                self.push(change(entry.node.per_second()?), change(before));
            }
        }
        Ok(())
    }

    fn places(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        for (key, lost) in [("lose", true), ("regain", false)] {
            for node in fields.get(key).map_or(&[][..], Node::one_or_more) {
                let datacenter = node.one_of("datacenter", &self.parts.names.datacenters)?;
                let change = |lost| Change::Datacenter { datacenter, lost };
                self.push(change(lost), change(!lost));
            }
        }
        if let Some(node) = fields.get("datacenter_speed") {
            for entry in node.entries("speeds by datacenter, such as { east: 50% }")? {
                let names = &self.parts.names.datacenters;
                let datacenter = place(&entry.key, entry.at, "datacenter", names)?;
                let change = |factor| Change::DatacenterSpeed { datacenter, factor };
                self.push(change(entry.node.speed()?), change(1.0));
            }
        }
        Ok(())
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

    /// Something that has no end that could be told.
    fn once(&mut self, change: Change) {
        self.steps.push(Step { at: self.from, change, passing: false, ends: false });
    }

    fn push(&mut self, change: Change, back: Change) {
        let passing = self.until.is_some();
        self.steps.push(Step { at: self.from, change, passing, ends: false });
        let end = |at| Step { at, change: back, passing: false, ends: true };
        self.steps.extend(self.until.map(end));
    }
}
