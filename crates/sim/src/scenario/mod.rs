//! A scenario: a short file that tells one story and names what it must show.
//!
//! [`Scenario::parse`] reads it and refuses it, with line, reason and what would be right, if
//! anything about it is wrong; nothing runs then. A [`Variant`] is the file as it is written, or
//! with some of its keys replaced; [`Variant::run`] runs one with a seed and gives what was written
//! down; [`Scenario::judge`] holds the checks against that. The same file and seed give the same
//! verdict, to the byte. `docs/scenarios.md` has every key.

mod check;
mod events;
mod extras;
mod fault;
mod keys;
mod measure;
mod measure_parts;
mod parts;
mod read;
mod stack;
mod tree;
mod variant;

pub use check::{Check, Judged, REASONS, check_keys, written};
pub use fault::Refused;
pub use keys::ALL as KEYS;
pub use measure::{MEASURES, Measure, Of, Unit};
pub use read::Keys;
pub use variant::Variant;

use crate::world::record::Record;
use core::ops::Range;
use core::time::Duration;
use fault::Fault;
use tree::Node;

/// The name of the variant that is the file as it is written.
pub const BASE: &str = "base";
/// Virtual days are real hours.
const LASTS_MAX: Duration = Duration::from_secs(86_400);

/// A scenario that can run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub story: String,
    /// Names the dice.
    pub seed: u64,
    /// How long it lasts.
    pub lasts: Duration,
    /// Spans of time by name.
    pub windows: Vec<(String, Range<Duration>)>,
    /// The file as it is written, then its variants.
    pub variants: Vec<Variant>,
    /// What must show.
    pub checks: Vec<Check>,
}

impl Scenario {
    /// Reads a scenario from `text`; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, Refused> {
        Self::read(text).map_err(|fault| Refused::new(file, fault))
    }

    fn read(text: &str) -> Result<Self, Fault> {
        let tree = Node::parse(text)?;
        let fields = tree.fields(&keys::SCENARIO)?;
        let name = fields.need("name", "surge")?.name("a name")?;
        let story = fields.need("story", "what happens, and what must come of it")?;
        let story = story.text("a few sentences")?.trim().to_owned();
        let node = fields.need("lasts", "60s")?;
        let lasts = node.some_time()?;
        if lasts > LASTS_MAX || lasts.subsec_nanos() != 0 {
            return Err(node.not("whole seconds, up to 24h"));
        }
        let windows = fields.or("windows", Vec::new(), |node| check::windows(node, lasts))?;
        let variants = variants(&tree, lasts)?;
        let context = check::Context { variants: &variants, windows: &windows, lasts };
        let example = "[{ success: web, at_least: 99% }]";
        let checks = check::checks(fields.need("checks", example)?, &context)?;
        let seed = fields.or("seed", 1, |node| node.whole(0, u64::MAX))?;
        Ok(Self { name, story, seed, lasts, windows, variants, checks })
    }

    /// Holds the checks against the records of all variants, in their order.
    pub fn judge(&self, records: &[&Record]) -> Vec<Judged> {
        self.checks.iter().map(|check| check.judge(&self.variants, records)).collect()
    }

    /// Runs all variants, one after the other, and judges them.
    pub fn verdict(&self, seed: u64) -> Vec<Judged> {
        let records: Vec<Record> = self.variants.iter().map(|v| v.run(seed)).collect();
        self.judge(&records.iter().collect::<Vec<_>>())
    }
}

/// The file as it is written, and every variant of it.
fn variants(tree: &Node, lasts: Duration) -> Result<Vec<Variant>, Fault> {
    let mut variants = vec![Variant::read(BASE, tree, lasts)?];
    let Some(entry) = tree.entry("variants") else { return Ok(variants) };
    for entry in entry.node.entries("variants by name, each with the keys that differ")? {
        if entry.key == BASE {
            let what = "the file as it is written has the name `base` already";
            return Err(Fault::new(entry.at, what, "another name"));
        }
        entry.node.fields(&keys::VARIANT)?;
        let merged = tree.overlaid(&entry.node);
        let variant = Variant::read(&entry.key, &merged, lasts).map_err(|fault| Fault {
            what: format!("in the variant `{}`: {}", entry.key, fault.what),
            ..fault
        })?;
        variants.push(variant);
    }
    Ok(variants)
}
