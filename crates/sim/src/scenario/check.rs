//! What a scenario must show: a measure, of somebody, at some time, in some variant, and its bounds.
//!
//! A check that names several windows, variants, criticalities or customers is as many checks.

use super::fault::{Fault, choices, suggestion};
use super::keys::{CHECK, TIMES};
use super::measure::{MEASURES, Measure, Of, Sample, Unit};
use super::parts::criticality;
use super::read::Keys;
use super::tree::{Node, Value};
use super::variant::Variant;
use crate::world::record::{BIN, Record};
use core::ops::Range;
use core::time::Duration;
use tidegate_core::Criticality;

/// Columns of `ServiceBin::reasons`.
pub const REASONS: [&str; 4] = ["lame_duck", "deadline", "quota", "overload"];

/// The share of a second's requests that has to be answered in time for calm: with a hundred of
/// them, all but one, so that a single refusal is forgiven and a run of them is not.
const HOLDING: f64 = 0.99;

/// Whose measure, when, and of which requests.
#[derive(Debug, Clone)]
struct Place {
    of: String,
    clients: Vec<usize>,
    services: Vec<usize>,
    variant: usize,
    /// In words: `during surge`.
    when: String,
    span: Range<Duration>,
    criticality: Option<Criticality>,
    customer: Option<(usize, String)>,
    reason: Option<usize>,
    tasks: Option<Range<usize>>,
    holding: f64,
}

/// One thing that must show.
#[derive(Debug, Clone)]
pub struct Check {
    line: u64,
    measure: &'static Measure,
    place: Place,
    times: Option<Place>,
    order: bool,
    /// Whether bounds are shares of capacity.
    of_capacity: bool,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Judged {
    /// What was measured, in words.
    pub what: String,
    /// The line of the check.
    pub line: u64,
    /// The name of the variant.
    pub variant: String,
    /// What came out; none if there was nothing to measure, or no end to it.
    pub measured: Option<f64>,
    /// The unit of `measured` and of the bounds: `share`, `seconds`, `count`, `times` or
    /// `per_second`.
    pub unit: &'static str,
    /// The lower bound.
    pub at_least: Option<f64>,
    /// The upper bound.
    pub at_most: Option<f64>,
    /// Whether it held.
    pub passed: bool,
}

impl Judged {
    /// The bounds in words.
    pub fn bounds(&self) -> String {
        let bound = |word: &str, value: Option<f64>| {
            value.map(|value| format!("{word} {}", written(value, self.unit)))
        };
        let both = [bound("at least", self.at_least), bound("at most", self.at_most)];
        both.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// What was measured, with its unit.
    pub fn measured_text(&self) -> String {
        self.measured.map_or_else(|| "nothing".to_owned(), |value| written(value, self.unit))
    }

    /// The verdict in a line.
    pub fn line(&self) -> String {
        let word = if self.passed { "PASS" } else { "FAIL" };
        format!("{word}  {}: {} ({})", self.what, self.measured_text(), self.bounds())
    }
}

/// A value with its unit.
pub fn written(value: f64, unit: &str) -> String {
    let digits = |value: f64| match value.abs() {
        size if value.fract() == 0.0 && size < 1e15 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    match unit {
        // 99.99 % must not read as 100 %.
        "share" if (0.9..1.0).contains(&value) && value > 0.998 => {
            format!("{:.3} %", (value * 1e5).floor() / 1e3)
        }
        "share" => format!("{} %", digits((value * 1e6).round() / 1e4)),
        "seconds" if value < 1e-3 => format!("{} µs", digits(value * 1e6)),
        "seconds" if value < 1.0 => format!("{} ms", digits(value * 1e3)),
        "seconds" => format!("{} s", digits(value)),
        "times" => format!("{}x", digits(value)),
        "per_second" => format!("{}/s", digits(value)),
        _ => digits(value),
    }
}

impl Check {
    /// The variants that have to run for it.
    pub fn variants(&self) -> impl Iterator<Item = usize> {
        [Some(self.place.variant), self.times.as_ref().map(|t| t.variant)].into_iter().flatten()
    }

    /// Judges a check by what was written down of each variant.
    pub(super) fn judge(&self, variants: &[Variant], records: &[&Record]) -> Judged {
        let value = |place: &Place| self.value(place, variants, records);
        let measured = match &self.times {
            Some(other) => value(&self.place).zip(value(other)).map(|(this, that)| this / that),
            None => value(&self.place),
        };
        let measured = measured.filter(|value| value.is_finite());
        let passed = measured.is_some_and(|value| {
            self.at_least.is_none_or(|least| value >= least)
                && self.at_most.is_none_or(|most| value <= most)
        });
        Judged {
            what: self.what(variants),
            line: self.line,
            variant: variants[self.place.variant].name.clone(),
            measured,
            unit: self.unit(),
            at_least: self.at_least,
            at_most: self.at_most,
            passed,
        }
    }

    fn value(&self, place: &Place, variants: &[Variant], records: &[&Record]) -> Option<f64> {
        let variant = &variants[place.variant];
        let sample = Sample {
            parts: &variant.parts,
            record: records[place.variant],
            clients: &place.clients,
            services: &place.services,
            span: place.span.clone(),
            criticality: place.criticality,
            customer: place.customer.as_ref().map(|(index, _)| *index),
            reason: place.reason,
            tasks: place.tasks.clone(),
            holding: place.holding,
        };
        if self.order {
            return inversion(self.measure, &sample);
        }
        let value = (self.measure.value)(&sample)?;
        if self.of_capacity {
            let capacity = sample.capacity();
            return (capacity > 0.0).then(|| value / capacity);
        }
        Some(value)
    }

    fn unit(&self) -> &'static str {
        match self.measure.unit {
            _ if self.times.is_some() => "times",
            Unit::Share => "share",
            Unit::PerSecond if self.of_capacity => "share",
            Unit::PerSecond => "per_second",
            Unit::Time => "seconds",
            Unit::Count => "count",
            Unit::Times => "times",
        }
    }

    /// The check in words.
    pub(super) fn what(&self, variants: &[Variant]) -> String {
        let mut what = format!("{} of {}", self.measure.name, self.place.of);
        if self.order {
            what = format!("largest inversion by criticality of {what}");
        }
        if let Some(criticality) = self.place.criticality {
            what = format!("{what}, {}", criticality.name());
        }
        if let Some((_, customer)) = &self.place.customer {
            what = format!("{what}, customer {customer}");
        }
        if let Some(reason) = self.place.reason {
            what = format!("{what}, {}", REASONS[reason]);
        }
        if let Some(tasks) = &self.place.tasks {
            what = format!("{what}, tasks {}..{}", tasks.start, tasks.end);
        }
        what = format!("{what} {}", self.place.when);
        if self.place.variant > 0 {
            what = format!("{what} in {}", variants[self.place.variant].name);
        }
        if let Some(times) = &self.times {
            let place = &self.place;
            let mut other = Vec::new();
            if times.of != place.of {
                other.push(format!("of {}", times.of));
            }
            if times.criticality != place.criticality {
                other.extend(times.criticality.map(|c| c.name().to_owned()));
            }
            if times.customer != place.customer {
                other.extend(times.customer.as_ref().map(|(_, name)| name.clone()));
            }
            if times.when != place.when {
                other.push(times.when.clone());
            }
            if times.variant != place.variant {
                other.push(format!("in {}", variants[times.variant].name));
            }
            what = format!("{what}, against {}", other.join(" "));
        }
        what
    }
}

/// By how much a criticality has less than one below it; none of them, and it is 0.
fn inversion(measure: &Measure, sample: &Sample<'_>) -> Option<f64> {
    let levels = Criticality::ALL.map(|criticality| {
        (measure.value)(&Sample { criticality: Some(criticality), ..sample.clone() })
    });
    let present: Vec<f64> = levels.into_iter().flatten().collect();
    let pairs = present.windows(2).map(|pair| pair[0] - pair[1]);
    (present.len() > 1).then(|| pairs.fold(0.0, f64::max))
}

impl Sample<'_> {
    /// Requests a second that could be done for those who are measured.
    pub(super) fn capacity(&self) -> f64 {
        let mut services: Vec<usize> = if self.services.is_empty() {
            self.clients.iter().map(|&client| self.parts.capacity_of[client]).collect()
        } else {
            self.services.to_vec()
        };
        services.sort_unstable();
        services.dedup();
        services.into_iter().map(|service| self.parts.capacity(service)).sum()
    }
}

/// What checks are about.
pub(super) struct Context<'a> {
    pub(super) variants: &'a [Variant],
    pub(super) windows: &'a [(String, Range<Duration>)],
    pub(super) lasts: Duration,
}

/// Reads the list of checks.
pub(super) fn checks(node: &Node, context: &Context<'_>) -> Result<Vec<Check>, Fault> {
    let example = "a list of checks, such as [{ success: web, at_least: 99% }]";
    let list = node.list(example)?;
    if list.is_empty() {
        return Err(node.wrong("there is no check: this story would show nothing", example));
    }
    let mut checks = Vec::new();
    for node in list {
        context.read(node, &mut checks)?;
    }
    Ok(checks)
}

impl Context<'_> {
    fn read(&self, node: &Node, checks: &mut Vec<Check>) -> Result<(), Fault> {
        let (measure, subject) = named_measure(node)?;
        let get = |key: &str| node.entry(key).map(|entry| &entry.node);
        let several = |key: &str| -> Vec<Option<&Node>> {
            get(key).map_or(vec![None], |node| node.one_or_more().iter().map(Some).collect())
        };
        for variant in several("variant") {
            for during in several("during") {
                for criticality in several("criticality") {
                    for customer in several("customer") {
                        let places = [variant, during, criticality, customer];
                        let place = self.place(node, measure, subject, places)?;
                        checks.push(self.check(node, measure, place)?);
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&self, node: &Node, measure: &'static Measure, place: Place) -> Result<Check, Fault> {
        let get = |key: &str| node.entry(key).map(|entry| &entry.node);
        let order = match get("order") {
            Some(node) => node.one_of("order", &["criticality"]).map(|_| true)?,
            None => false,
        };
        let times = get("times").map(|times| self.times(times, measure, &place)).transpose()?;
        let bound = |key: &str| get(key).map(|n| bound(n, measure, times.is_some())).transpose();
        let (least, most) = (bound("at_least")?, bound("at_most")?);
        let of_capacity = match (least, most) {
            (Some((_, a)), Some((_, b))) if a != b => {
                let what = "one bound is in %, the other a rate";
                return Err(node.wrong(what, "both in the same unit"));
            }
            (Some((_, of)), _) | (_, Some((_, of))) => of,
            (None, None) if order => false,
            (None, None) => {
                let what = "this check has no bound: it could not fail";
                return Err(node.wrong(what, "at_least, at_most or both"));
            }
        };
        let at_most = most.map(|(value, _)| value).or(order.then_some(0.0));
        let at_least = least.map(|(value, _)| value);
        if at_least.zip(at_most).is_some_and(|(least, most)| least > most) {
            return Err(node.wrong("at_least is above at_most", "bounds that leave something"));
        }
        let line = node.at.line;
        Ok(Check { line, measure, place, times, order, of_capacity, at_least, at_most })
    }

    /// `places` are the nodes of variant, during, criticality and customer.
    fn place(
        &self,
        node: &Node,
        measure: &Measure,
        subject: &Node,
        [variant, during, level, customer]: [Option<&Node>; 4],
    ) -> Result<Place, Fault> {
        let get = |key: &str| node.entry(key).map(|entry| &entry.node);
        let variant = variant.map_or(Ok(0), |node| self.variant(node))?;
        let (of, clients, services) = self.subject(subject, measure, variant, get("per"))?;
        let (when, span) = if measure.keys.contains(&"after") {
            self.after(node, get("after"), get("until"))?
        } else {
            self.window(during, measure)?
        };
        let tasks = get("tasks").map(|node| {
            let tasks = |&s: &usize| self.variants[variant].parts.world.services[s].tasks.len();
            node.tasks(services.iter().map(tasks).min().unwrap_or_default())
        });
        let reason = get("reason").map(|node| node.one_of("reason", &REASONS)).transpose()?;
        Ok(Place {
            of,
            clients,
            services,
            variant,
            when,
            span,
            criticality: level.map(level_of).transpose()?,
            customer: customer.map(|node| self.customer(node, variant)).transpose()?,
            reason,
            tasks: tasks.transpose()?,
            holding: get("holding").map_or(Ok(HOLDING), Node::share)?,
        })
    }

    fn times(&self, node: &Node, measure: &Measure, this: &Place) -> Result<Place, Fault> {
        let fields = node.fields(&TIMES)?;
        if node.entries("a map such as { during: calm }")?.is_empty() {
            return Err(node.wrong("this compares with itself", "{ during: calm }, for example"));
        }
        let mut other = this.clone();
        fields.set("variant", &mut other.variant, |node| self.variant(node))?;
        if let Some(node) = fields.get("of") {
            (other.of, other.clients, other.services) =
                self.subject(node, measure, other.variant, None)?;
        }
        if let Some(node) = fields.get("during") {
            (other.when, other.span) = self.window(Some(node), measure)?;
        }
        fields.set("criticality", &mut other.criticality, |node| level_of(node).map(Some))?;
        let variant = other.variant;
        fields.set("customer", &mut other.customer, |n| self.customer(n, variant).map(Some))?;
        Ok(other)
    }

    fn variant(&self, node: &Node) -> Result<usize, Fault> {
        let names: Vec<&str> = self.variants.iter().map(|v| v.name.as_str()).collect();
        node.one_of("variant", &names)
    }

    fn customer(&self, node: &Node, variant: usize) -> Result<(usize, String), Fault> {
        let names = &self.variants[variant].parts.names.customers;
        let index = node.one_of("customer", names)?;
        Ok((index, names[index].clone()))
    }

    /// Name, clients and services of those who are measured.
    #[allow(clippy::type_complexity)]
    fn subject(
        &self,
        node: &Node,
        measure: &Measure,
        variant: usize,
        per: Option<&Node>,
    ) -> Result<(String, Vec<usize>, Vec<usize>), Fault> {
        let parts = &self.variants[variant].parts;
        let names = &parts.names;
        let (mut clients, mut services, mut of) = (Vec::new(), Vec::new(), Vec::new());
        for node in node.one_or_more() {
            let name = node.name("the name of a client or a service")?;
            let client = names.clients.iter().position(|n| *n == name);
            let service = names.services.iter().position(|n| *n == name);
            match (client, service, measure.of) {
                (Some(_), _, Of::Services) => {
                    let what = format!("{} is measured at a service, `{name}` is a client", {
                        measure.name
                    });
                    return Err(node.wrong(what, choices(&names.services)));
                }
                (Some(client), ..) => clients.push(client),
                (_, Some(service), Of::Clients) => {
                    let asks = |&c: &usize| parts.world.clients[c].service == service;
                    clients.extend((0..names.clients.len()).filter(asks));
                    services.push(service);
                }
                (_, Some(service), _) => services.push(service),
                _ => {
                    let known = match measure.of {
                        Of::Services => names.services.clone(),
                        _ => [names.clients.clone(), names.services.clone()].concat(),
                    };
                    let what = format!("there is no client or service `{name}`");
                    return Err(node.wrong(what, suggestion(&name, &known)));
                }
            }
            of.push(name);
        }
        if of.is_empty() {
            return Err(node.not("the name of a client or a service"));
        }
        if measure.of == Of::Either && !services.is_empty() {
            clients = match per {
                Some(node) => {
                    let all = node.one_or_more().iter();
                    all.map(|n| n.one_of("client", &names.clients)).collect::<Result<_, _>>()?
                }
                None => (0..names.clients.len()).collect(),
            };
        }
        Ok((of.join(" and "), clients, services))
    }

    fn window(
        &self,
        node: Option<&Node>,
        measure: &Measure,
    ) -> Result<(String, Range<Duration>), Fault> {
        let Some(node) = node else {
            return Ok(("all the time".to_owned(), Duration::ZERO..self.lasts));
        };
        let (when, span) = match node.span() {
            Some(span) => {
                let span = within(node, span?, self.lasts)?;
                (format!("from {:?} to {:?}", span.start, span.end), span)
            }
            None => {
                let names: Vec<&str> = self.windows.iter().map(|(n, _)| n.as_str()).collect();
                let index = node.one_of("window", &names)?;
                (format!("during {}", names[index]), self.windows[index].1.clone())
            }
        };
        let whole = |at: Duration| at.subsec_nanos() == 0;
        if measure.by_second && !(whole(span.start) && whole(span.end)) {
            let what = format!("{} is written down by the second", measure.name);
            return Err(node.wrong(what, "a window of whole seconds, such as 2s..10s"));
        }
        Ok((when, span))
    }

    fn after(
        &self,
        check: &Node,
        after: Option<&Node>,
        until: Option<&Node>,
    ) -> Result<(String, Range<Duration>), Fault> {
        let Some(node) = after else {
            let what = "recovery needs to know from what";
            return Err(check.wrong(what, "add `after: 20s`, the end of the trouble"));
        };
        let after = node.duration()?;
        let until = until.map_or(Ok(self.lasts), Node::duration)?;
        // A second has to follow that can be good or bad.
        if after + Duration::from_secs(1) > until || until > self.lasts {
            let what = format!("no whole second follows {after:?} before {until:?}");
            return Err(node.wrong(what, format!("a moment earlier, within {:?}", self.lasts)));
        }
        Ok((format!("after {after:?}"), tenths(node, after..until)?))
    }
}

fn level_of(node: &Node) -> Result<Criticality, Fault> {
    criticality(&node.name("a criticality")?, node.at)
}

/// The measure that a check names, and whose.
fn named_measure(node: &Node) -> Result<(&'static Measure, &Node), Fault> {
    let entries = node.entries("a check, such as { success: web, at_least: 99% }")?;
    let mut found: Option<(&'static Measure, &Node)> = None;
    for entry in entries {
        if let Some(measure) = Measure::named(&entry.key) {
            if let Some((first, _)) = found {
                let what = format!("a check of both {} and {}", first.name, measure.name);
                return Err(Fault::new(entry.at, what, "one measure in a check"));
            }
            found = Some((measure, &entry.node));
        } else if !CHECK.names.contains(&entry.key.as_str()) {
            let names: Vec<&str> =
                MEASURES.iter().map(|m| m.name).chain(CHECK.names.iter().copied()).collect();
            let what = format!("unknown key `{}` of a check", entry.key);
            return Err(Fault::new(entry.at, what, suggestion(&entry.key, &names)));
        }
    }
    let Some((measure, subject)) = found else {
        let names: Vec<&str> = MEASURES.iter().map(|m| m.name).collect();
        let what = "this check measures nothing";
        return Err(node.wrong(what, format!("one of {}", choices(&names))));
    };
    let always = ["at_least", "at_most", "variant", "times"];
    for entry in entries {
        let key = entry.key.as_str();
        let heeded = key == measure.name
            || always.contains(&key)
            || measure.keys.contains(&key)
            || (key == "during" && !measure.keys.contains(&"after"))
            || (key == "order" && measure.keys.contains(&"customer"));
        if !heeded {
            let mut keys: Vec<&str> = always.iter().chain(measure.keys).copied().collect();
            if !measure.keys.contains(&"after") {
                keys.push("during");
            }
            let what = format!("{} does not heed `{key}`", measure.name);
            return Err(Fault::new(entry.at, what, format!("it heeds {}", keys.join(", "))));
        }
    }
    Ok((measure, subject))
}

/// A bound, and whether it is a share of capacity.
fn bound(node: &Node, measure: &Measure, relative: bool) -> Result<(f64, bool), Fault> {
    let plain = |value: Result<f64, Fault>| value.map(|value| (value, false));
    match measure.unit {
        _ if relative => plain(node.portion()),
        Unit::Share | Unit::Times => plain(node.portion()),
        Unit::Time => plain(node.duration().map(|span| span.as_secs_f64())),
        Unit::Count => plain(node.number()),
        Unit::PerSecond => match &node.value {
            Value::Text(text) if text.ends_with('%') => node.portion().map(|share| (share, true)),
            _ => plain(node.per_second().map_err(|_| {
                node.not("a share of capacity, such as 95%, or a rate, such as 100/s")
            })),
        },
    }
}

/// Reads the windows: a name and from when to when.
pub(super) fn windows(
    node: &Node,
    lasts: Duration,
) -> Result<Vec<(String, Range<Duration>)>, Fault> {
    let mut windows = Vec::new();
    for entry in node.entries("windows by name, such as { calm: 2s..10s }")? {
        let span = entry.node.span().ok_or_else(|| entry.node.not("two moments: 2s..10s"))??;
        windows.push((entry.key.clone(), within(&entry.node, span, lasts)?));
    }
    Ok(windows)
}

fn within(node: &Node, span: Range<Duration>, lasts: Duration) -> Result<Range<Duration>, Fault> {
    if span.end > lasts {
        let what = format!("this window goes on until {:?}, past the end", span.end);
        return Err(node.wrong(what, format!("an end at {lasts:?} or before")));
    }
    tenths(node, span)
}

/// Counts are kept by the tenth of a second.
fn tenths(node: &Node, span: Range<Duration>) -> Result<Range<Duration>, Fault> {
    let whole = |at: Duration| at.as_nanos().is_multiple_of(BIN.as_nanos());
    if whole(span.start) && whole(span.end) {
        Ok(span)
    } else {
        Err(node.not("moments in whole tenths of a second"))
    }
}

/// What the keys of a check are, measures included, for the reference.
pub fn check_keys() -> (&'static Keys, Vec<&'static str>) {
    (&CHECK, MEASURES.iter().map(|measure| measure.name).collect())
}
