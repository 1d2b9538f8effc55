//! One telling of the story: the file as it is written, or with some of its keys replaced.

use super::events::changes;
use super::fault::Fault;
use super::keys;
use super::parts::{Parts, parts};
use super::tree::Node;
use crate::world::World;
use crate::world::record::Record;
use crate::world::spec::{Change, WorldSpec};
use core::time::Duration;

/// More requests than this take minutes, and memory for as many if nobody answers them: a file that
/// asks for so many has a slip in a rate.
const REQUESTS_MAX: f64 = 2e7;

/// A way to tell the story.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Variant {
    /// Its name; the file as it is written is `base`.
    pub name: String,
    pub(super) parts: Parts,
}

impl Variant {
    pub(super) fn read(name: &str, tree: &Node, lasts: Duration) -> Result<Self, Fault> {
        let fields = tree.fields(&keys::SCENARIO)?;
        let mut parts = parts(&fields, lasts)?;
        if let Some(node) = fields.get("events") {
            parts.world.changes = changes(node, &parts)?;
        }
        let requests = requests(&parts.world);
        if requests > REQUESTS_MAX {
            let at = fields.get("clients").map_or(tree.at, |node| node.at);
            let what = format!("about {requests:.0} requests would be asked");
            let right = format!("{REQUESTS_MAX:.0} at most: a lower load or rate, or less time");
            return Err(Fault::new(at, what, right));
        }
        // What only the parts of a world can tell, they tell now, before anything runs.
        if let Err(error) = World::new(parts.world.clone()) {
            return Err(tree.wrong(error.to_string(), error.wanted()));
        }
        Ok(Self { name: name.to_owned(), parts })
    }

    /// Runs it. The world goes on after the end of the story until the last request of it is
    /// answered or given up, so that the last seconds count like all others.
    pub fn run(&self, seed: u64) -> Record {
        let mut world = self.parts.world.clone();
        world.seed = seed;
        let patience = world.clients.iter().map(|client| client.deadline).max();
        world.lasts += patience.unwrap_or_default();
        let lasts = world.lasts;
        match World::new(world) {
            Ok(world) => world.run(),
            // The same world without the seed was set up when the file was read.
            Err(_) => Record::new(0, &[], lasts, 0),
        }
    }

    /// The names of its clients.
    pub fn clients(&self) -> &[String] {
        &self.parts.names.clients
    }

    /// The names of its services.
    pub fn services(&self) -> &[String] {
        &self.parts.names.services
    }

    /// Requests a second that a service can do.
    pub fn capacity(&self, service: usize) -> f64 {
        self.parts.capacity(service)
    }

    /// The world that runs.
    pub fn world(&self) -> &WorldSpec {
        &self.parts.world
    }
}

/// About how many requests clients will make.
fn requests(world: &WorldSpec) -> f64 {
    let mut total = 0.0;
    for (index, client) in world.clients.iter().enumerate() {
        let (mut rate, mut since) = (client.rate, 0.0);
        let end = world.lasts.as_secs_f64();
        for (at, change) in &world.changes {
            if let Change::Rate { client, rate: next } = change
                && *client == index
            {
                let at = (at.as_nanos() as f64 / 1e9).min(end);
                total += rate * (at - since);
                (rate, since) = (*next, at);
            }
        }
        total += rate * (end - since);
    }
    total
}
