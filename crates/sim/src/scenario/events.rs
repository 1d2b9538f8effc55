//! What happens while a scenario lasts. An action is one entry in [`ACTIONS`] and one function.

use super::fault::{Fault, choices};
use super::keys;
use super::parts::Parts;
use super::read::{Fields, place};
use super::tree::Node;
use crate::world::spec::Change;
use core::ops::Range;
use core::time::Duration;
use tidegate_core::Timestamp;

/// What one action does: it reads its own node, and what else the event says about it.
type Act = fn(&mut Event<'_>, &Node, &Fields<'_>) -> Result<(), Fault>;

/// What an event can do: each action's key, and what it does.
pub(super) const ACTIONS: [(&str, Act); 17] = [
    ("load", |event, node, _| event.load(node)),
    ("rate", |event, node, _| event.rates(node)),
    ("speed", |event, node, fields| event.speed(node, fields)),
    ("cost", |event, node, _| event.cost(node)),
    ("fail_fast", |event, node, fields| event.fail_fast(node, fields, true)),
    ("works", |event, node, fields| event.fail_fast(node, fields, false)),
    ("down", |event, node, fields| event.down(node, fields, true)),
    ("up", |event, node, fields| event.down(node, fields, false)),
    ("join", |event, node, fields| event.join(node, fields)),
    ("restart", |event, node, fields| event.restart(node, fields)),
    ("limits", |event, node, _| event.limits(node)),
    ("quota_server", |event, node, _| event.quota_server(node)),
    ("lose", |event, node, _| event.place(node, true)),
    ("regain", |event, node, _| event.place(node, false)),
    ("datacenter_speed", |event, node, _| event.datacenter_speed(node)),
    ("doorman", |event, node, _| event.doorman(node)),
    ("doorman_capacity", |event, node, _| event.doorman_capacity(node)),
];

/// What can become of a quota server or a doorman.
const SERVER_CHANGES: [&str; 3] = ["lost", "back", "elect"];
/// The last of them: another is elected.
const ELECT: usize = 2;

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
        for (key, act) in ACTIONS {
            if let Some(node) = fields.get(key) {
                act(&mut event, node, &fields)?;
            }
        }
        if event.steps.is_empty() {
            let what = "this event changes nothing";
            let actions = ACTIONS.map(|(key, _)| key);
            return Err(node.wrong(what, format!("one of {}", choices(&actions))));
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

pub(super) struct Event<'a> {
    parts: &'a Parts,
    from: Duration,
    until: Option<Duration>,
    steps: Vec<Step>,
}

impl Event<'_> {
    fn load(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("multiples of capacity by client, such as { web: 10 }")? {
            let client = place(&entry.key, entry.at, "client", &self.parts.names.clients)?;
            let capacity = self.parts.capacity(self.parts.capacity_of[client]);
            self.rate(client, entry.node.portion()? * capacity);
        }
        Ok(())
    }

    fn rates(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("rates by client, such as { web: 100/s }")? {
            let client = place(&entry.key, entry.at, "client", &self.parts.names.clients)?;
            self.rate(client, entry.node.per_second()?);
        }
        Ok(())
    }

    fn speed(&mut self, node: &Node, fields: &Fields<'_>) -> Result<(), Fault> {
        for entry in node.entries("speeds by service, such as { api: 50% }")? {
            let service = place(&entry.key, entry.at, "service", &self.parts.names.services)?;
            let factor = entry.node.speed()?;
            let tasks = self.tasks(fields, service)?;
            let change = |factor| Change::Speed { service, tasks: tasks.clone(), factor };
            self.push(change(factor), change(1.0));
        }
        Ok(())
    }

    fn cost(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("multiples of cost by service, such as { api: 3 }")? {
            let service = place(&entry.key, entry.at, "service", &self.parts.names.services)?;
            let factor = entry.node.portion()?;
            let change = |factor| Change::Cost { service, factor };
            self.push(change(factor), change(1.0));
        }
        Ok(())
    }

    fn fail_fast(&mut self, node: &Node, fields: &Fields<'_>, fails: bool) -> Result<(), Fault> {
        for (service, tasks) in self.those(node, fields)? {
            let change = |fails| Change::FailFast { service, tasks: tasks.clone(), fails };
            self.push(change(fails), change(!fails));
        }
        Ok(())
    }

    fn down(&mut self, node: &Node, fields: &Fields<'_>, down: bool) -> Result<(), Fault> {
        for (service, tasks) in self.those(node, fields)? {
            let change = |down| Change::Down { service, tasks: tasks.clone(), down };
            self.push(change(down), change(!down));
        }
        Ok(())
    }

    fn join(&mut self, node: &Node, fields: &Fields<'_>) -> Result<(), Fault> {
        for (service, tasks) in self.those(node, fields)? {
            if tasks.start == 0 {
                let what = "all tasks join later, so that nobody is there to begin with";
                let node = fields.get("tasks").unwrap_or(fields.node);
                return Err(node.wrong(what, "the last tasks, such as 300..301"));
            }
            self.once(Change::Join { service, tasks });
        }
        Ok(())
    }

    fn restart(&mut self, node: &Node, fields: &Fields<'_>) -> Result<(), Fault> {
        let time =
            |key: &str, usual: u64| fields.or(key, Duration::from_secs(usual), Node::duration);
        // What a deployment takes: a few seconds to drain and to start, half a minute to warm up.
        let (lame_duck, down_for) = (time("lame_duck", 5)?, time("down_for", 5)?);
        let (cold_for, cold_speed) =
            (time("cold_for", 30)?, fields.or("cold_speed", 0.5, Node::speed)?);
        for (service, tasks) in self.those(node, fields)? {
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

    fn limits(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("CPUs by customer, such as { good: 2 }")? {
            let customer = place(&entry.key, entry.at, "customer", &self.parts.names.customers)?;
            let change = |limits| Change::Limits { customer, limits };
            let before = self.parts.world.customers[customer];
            self.push(change(super::parts::limits(&entry.node)?), change(before));
        }
        Ok(())
    }

    fn quota_server(&mut self, node: &Node) -> Result<(), Fault> {
        match node.one_of("change of a server", &SERVER_CHANGES)? {
            ELECT => self.once(Change::QuotaElection),
            word => {
                let lost = word == 0;
                self.push(Change::QuotaServer { lost }, Change::QuotaServer { lost: !lost });
            }
        }
        Ok(())
    }

    fn place(&mut self, node: &Node, lost: bool) -> Result<(), Fault> {
        for node in node.one_or_more() {
            let datacenter = node.one_of("datacenter", &self.parts.names.datacenters)?;
            let change = |lost| Change::Datacenter { datacenter, lost };
            self.push(change(lost), change(!lost));
        }
        Ok(())
    }

    fn datacenter_speed(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("speeds by datacenter, such as { east: 50% }")? {
            let names = &self.parts.names.datacenters;
            let datacenter = place(&entry.key, entry.at, "datacenter", names)?;
            let change = |factor| Change::DatacenterSpeed { datacenter, factor };
            self.push(change(entry.node.speed()?), change(1.0));
        }
        Ok(())
    }

    fn doorman(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("changes by doorman, such as { rate: lost }")? {
            let server = place(&entry.key, entry.at, "doorman", &self.parts.names.doormen)?;
            match entry.node.one_of("change of a server", &SERVER_CHANGES)? {
                ELECT => self.once(Change::DoormanElection { server }),
                word => {
                    let change = |lost| Change::Doorman { server, lost };
                    self.push(change(word == 0), change(word != 0));
                }
            }
        }
        Ok(())
    }

    fn doorman_capacity(&mut self, node: &Node) -> Result<(), Fault> {
        for entry in node.entries("rates by doorman, such as { rate: 100/s }")? {
            let server = place(&entry.key, entry.at, "doorman", &self.parts.names.doormen)?;
            let change = |capacity| Change::DoormanCapacity { server, capacity };
            let before = self.parts.world.doormen[server].capacity;
            self.push(change(entry.node.per_second()?), change(before));
        }
        Ok(())
    }

    /// The services that an action is about, and which of their tasks.
    fn those(&self, node: &Node, fields: &Fields<'_>) -> Result<Vec<(usize, Range<usize>)>, Fault> {
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
