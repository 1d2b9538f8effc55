//! What is asked for: chosen by weight, each thing on its own.
//!
//! A request has a route (method, path, headers, body), a criticality, a customer and a deadline.
//! Routes are chosen first and may have mixes of their own; what a route leaves open comes from the
//! mix of all. Each choice draws once, in this order, from the dice of the request's number
//! ([`dice_of`](crate::schedule::dice_of)), also where there is only one to choose from: adding a
//! second customer then does not change who is critical.

use crate::text::{Span, Unreadable, WeightedList};
use bytes::Bytes;
use core::time::Duration;
use http::{HeaderMap, Method};
use tidegate_core::Criticality;
use tidegate_core::rng::Rng;

/// Things with weights. Never empty.
#[derive(Debug, Clone)]
pub struct Weighted<T> {
    items: Vec<T>,
    /// Sums of weights up to and with each item.
    sums: Vec<u64>,
}

impl<T> Weighted<T> {
    /// Always this one.
    pub fn only(item: T) -> Self {
        Self { items: vec![item], sums: vec![1] }
    }

    /// Each as often as its weight says; nothing if there is nothing to choose from.
    pub fn new(list: impl IntoIterator<Item = (T, u32)>) -> Option<Self> {
        let mut weighted = Self { items: Vec::new(), sums: Vec::new() };
        let mut sum = 0;
        for (item, weight) in list {
            if weight > 0 {
                sum += u64::from(weight);
                weighted.items.push(item);
                weighted.sums.push(sum);
            }
        }
        (sum > 0).then_some(weighted)
    }

    /// What there is.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// The place of one, by chance.
    pub fn pick(&self, rng: &mut impl Rng) -> usize {
        let draw = rng.below(*self.sums.last().unwrap_or(&1));
        self.sums.partition_point(|&sum| sum <= draw).min(self.items.len() - 1)
    }
}

/// What requests say about themselves.
#[derive(Debug, Clone)]
pub struct Mix {
    /// How much they matter.
    pub criticality: Weighted<Criticality>,
    /// Whom they are charged to; none sends no header.
    pub customer: Weighted<Option<Box<str>>>,
    /// How long callers wait, and say so; none says nothing.
    pub deadline: Weighted<Option<Duration>>,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            criticality: Weighted::only(Criticality::default()),
            customer: Weighted::only(None),
            deadline: Weighted::only(None),
        }
    }
}

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers besides those that say what the mix says.
    pub headers: HeaderMap,
    /// Bodies; in gRPC, messages.
    pub bodies: Weighted<Bytes>,
    /// What it says about itself.
    pub mix: Mix,
}

/// What one request asks for: places in the lists of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Which route.
    pub route: u32,
    /// Which of its bodies.
    pub body: u32,
    /// Which of its customers.
    pub customer: u32,
    /// How much it matters.
    pub criticality: Criticality,
    /// How long its caller waits.
    pub deadline: Option<Duration>,
}

/// Draws what a request asks for.
pub fn choose(routes: &Weighted<Route>, rng: &mut impl Rng) -> Choice {
    let place = routes.pick(rng);
    let route = &routes.items()[place];
    let criticality = route.mix.criticality.items()[route.mix.criticality.pick(rng)];
    let customer = route.mix.customer.pick(rng) as u32;
    let deadline = route.mix.deadline.items()[route.mix.deadline.pick(rng)];
    let body = route.bodies.pick(rng) as u32;
    Choice { route: place as u32, body, customer, criticality, deadline }
}

/// What a list must not be: empty.
fn some<T>(list: Option<Weighted<T>>, of: &str) -> Result<Weighted<T>, Unreadable> {
    list.ok_or_else(|| Unreadable::new(format!("no {of} is given"), "at least one"))
}

/// Reads `CRITICAL:3,SHEDDABLE:1`.
pub(crate) fn criticalities(list: &WeightedList) -> Result<Weighted<Criticality>, Unreadable> {
    let mut items = Vec::new();
    for (name, weight) in &list.0 {
        let criticality = name.parse().map_err(|_| {
            let right = "CRITICAL_PLUS, CRITICAL, SHEDDABLE_PLUS or SHEDDABLE";
            Unreadable::new(format!("`{name}` is no criticality"), right)
        })?;
        items.push((criticality, *weight));
    }
    some(Weighted::new(items), "criticality")
}

/// Reads `alice:9,bob`; `-` is nobody.
pub(crate) fn customers(list: &WeightedList) -> Result<Weighted<Option<Box<str>>>, Unreadable> {
    let mut items = Vec::new();
    for (name, weight) in &list.0 {
        if !name.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            let right = "letters, digits and signs of ASCII, as it goes into a header";
            return Err(Unreadable::new(format!("`{name}` is no customer"), right));
        }
        items.push(((name != "-").then(|| name.as_str().into()), *weight));
    }
    some(Weighted::new(items), "customer")
}

/// Reads `100ms:3,1s`; `none` is without one.
pub(crate) fn deadlines(list: &WeightedList) -> Result<Weighted<Option<Duration>>, Unreadable> {
    let mut items = Vec::new();
    for (text, weight) in &list.0 {
        let deadline = match text.as_str() {
            "none" => None,
            text => match text.parse()? {
                Span(Duration::ZERO) => {
                    let right = "more than no time, such as 250ms, or none";
                    return Err(Unreadable::new("a deadline of nothing", right));
                }
                Span(span) => Some(span),
            },
        };
        items.push((deadline, *weight));
    }
    some(Weighted::new(items), "deadline")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::dice_of;

    fn list(text: &str) -> WeightedList {
        text.parse().unwrap()
    }

    #[test]
    fn weights_are_kept_and_numbers_do_not_disturb_each_other() {
        let criticality = criticalities(&list("CRITICAL:3,sheddable:1")).unwrap();
        let counts = (0..40_000).fold([0_u32; 2], |mut counts, number| {
            counts[criticality.pick(&mut dice_of(5, number))] += 1;
            counts
        });
        // Three standard errors of a binomial: 260.
        assert!(counts[0].abs_diff(30_000) < 260, "{counts:?}");
    }

    #[test]
    fn a_second_customer_does_not_change_who_is_critical() {
        let route = |customer: &str| Route {
            method: Method::GET,
            path: "/".to_owned(),
            headers: HeaderMap::new(),
            bodies: Weighted::only(Bytes::new()),
            mix: Mix {
                criticality: criticalities(&list("CRITICAL,SHEDDABLE")).unwrap(),
                customer: customers(&list(customer)).unwrap(),
                deadline: deadlines(&list("none,1s")).unwrap(),
            },
        };
        let (one, two) = (Weighted::only(route("a")), Weighted::only(route("a,b")));
        let mut seen = [false; 2];
        for number in 0..1_000 {
            let (x, y) =
                (choose(&one, &mut dice_of(1, number)), choose(&two, &mut dice_of(1, number)));
            assert_eq!((x.criticality, x.deadline), (y.criticality, y.deadline));
            seen[y.customer as usize] = true;
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn nonsense_says_what_would_be_right() {
        for error in [
            criticalities(&list("HIGH")).unwrap_err(),
            deadlines(&list("0s")).unwrap_err(),
            deadlines(&list("soon")).unwrap_err(),
            customers(&list("bücher")).unwrap_err(),
        ] {
            assert!(error.to_string().contains("right: "), "{error}");
        }
    }
}
