//! From the tree to checks.

use super::{Check, Place, REASONS};
use crate::scenario::fault::{Fault, choices, suggestion};
use crate::scenario::keys::{CHECK, TIMES};
use crate::scenario::measure::{HOLDING, MEASURES, Measure, Of, Unit};
use crate::scenario::parts::criticality;
use crate::scenario::read::Keys;
use crate::scenario::tree::{Node, Value};
use crate::scenario::variant::Variant;
use crate::world::record::BIN;
use core::ops::Range;
use core::time::Duration;
use tidegate_core::Criticality;

/// What checks are about.
pub(in crate::scenario) struct Context<'a> {
    pub(in crate::scenario) variants: &'a [Variant],
    pub(in crate::scenario) windows: &'a [(String, Range<Duration>)],
    pub(in crate::scenario) lasts: Duration,
}

/// Reads the list of checks.
pub(in crate::scenario) fn checks(node: &Node, context: &Context<'_>) -> Result<Vec<Check>, Fault> {
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
        let (when, span) = if let Some(span) = node.span() {
            let span = within(node, span?, self.lasts)?;
            (format!("from {:?} to {:?}", span.start, span.end), span)
        } else {
            let names: Vec<&str> = self.windows.iter().map(|(name, _)| name.as_str()).collect();
            let index = node.one_of("window", &names)?;
            (format!("during {}", names[index]), self.windows[index].1.clone())
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
        Unit::Share if !matches!(node.value, Value::Text(_)) => plain(share(node)),
        Unit::Share | Unit::Times => plain(node.portion()),
        Unit::Time => plain(node.duration().map(|span| span.as_secs_f64())),
        Unit::Count => plain(node.number()),
        Unit::PerSecond => {
            if let Value::Text(text) = &node.value
                && text.ends_with('%')
            {
                return node.portion().map(|share| (share, true));
            }
            let wanted = "a share of capacity, such as 95%, or a rate, such as 100/s";
            plain(node.per_second().map_err(|_| node.not(wanted)))
        }
    }
}

/// A share that is written without a percent sign. Who writes 99 means 99 %, and would wait in vain
/// for 9,900 %.
fn share(node: &Node) -> Result<f64, Fault> {
    let share = node.portion()?;
    if share > 1.0 {
        let what = format!("`{share}` without a percent sign is {} %", share * 100.0);
        return Err(node.wrong(what, format!("{share}%, or a share such as 0.99")));
    }
    Ok(share)
}

/// Reads the windows: a name and from when to when.
pub(in crate::scenario) fn windows(
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
