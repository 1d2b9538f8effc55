//! Why a request was refused, or why the task changed what it does, for somebody who was not there.
//!
//! An answer has a number in `x-tidegate-decision`; this is what it stands for: what came in, what
//! said how much it matters and whose it is, which number stood where, what was answered, and what
//! would have made it otherwise.
//!
//! **When it is wrong.** Of all refusals a sample is kept, and of that the newest: see
//! [`events`](crate::events). What the task was offered and capable of is that of the look, up to a
//! second later.

use super::api::{Event as Shown, Explanation, Fact};
use super::text::number;
use crate::events::{
    Answer, CriticalityFrom, CustomerFrom, Ended, Ending, Event, Grounds, Refusal, What,
};
use core::time::Duration;
use tidegate_core::Criticality;
use tidegate_core::decision::{Advice, Cause, Reason};
use tidegate_core::fleet::Limits;

/// A decision with what was known when it was looked at.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) event: Event,
    pub(super) at_ms: u64,
    pub(super) offered_cpus: Option<f64>,
    pub(super) capacity_cpus: Option<f64>,
    /// What its customer may use.
    pub(super) limits: Option<Limits>,
}

impl Decision {
    /// What it can be asked about by: the number in its answer, or what changed and when. One tick
    /// may change several things.
    pub(super) fn id(&self) -> String {
        let (at, kind) = (self.event.at.as_nanos(), self.kind());
        match &self.event.what {
            What::Refused(refusal) => refusal.id.to_string(),
            What::Ended(ended) => ended.id.to_string(),
            What::Degrade { criticality, .. } => {
                format!("change-{at:x}-{kind}-{}", criticality.index())
            }
            _ => format!("change-{at:x}-{kind}"),
        }
    }

    fn is_change(&self) -> bool {
        !matches!(self.event.what, What::Refused(_) | What::Ended(_))
    }

    const fn kind(&self) -> &'static str {
        match &self.event.what {
            What::Refused(_) => "refused",
            What::Ended(ended) => ended.how.name(),
            What::Shed { .. } => "shed",
            What::Degrade { .. } => "degrade",
            What::DontRetry(_) => "dont_retry",
            What::LameDuck(_) => "lame_duck",
            What::Dark(_) => "dark",
        }
    }

    /// In a line.
    pub(super) fn shown(&self) -> Shown {
        let mut shown = Shown {
            id: self.id(),
            at_ms: self.at_ms,
            change: self.is_change(),
            kind: self.kind().to_owned(),
            text: self.title(),
            ..Shown::default()
        };
        if let What::Refused(refusal) = &self.event.what {
            shown.reason = Some(refusal.reason.code().to_owned());
            shown.criticality = Some(refusal.criticality.name().to_owned());
            shown.customer = refusal.customer.as_deref().map(str::to_owned);
        }
        if let What::Ended(ended) = &self.event.what {
            shown.criticality = Some(ended.criticality.name().to_owned());
            shown.customer = ended.customer.as_deref().map(str::to_owned);
        }
        shown
    }

    fn title(&self) -> String {
        let refusal = match &self.event.what {
            What::Refused(refusal) => refusal,
            What::Ended(ended) => return format!("{} {}", ended.criticality, ended.how),
            change => {
                let mut text = change.to_string();
                if let Some(first) = text.get_mut(..1) {
                    first.make_ascii_uppercase();
                }
                return text;
            }
        };
        let Refusal { reason, criticality, .. } = refusal;
        let how = if refusal.answer.is_some() { "Refused" } else { "Let in by dark mode" };
        let grounds = refusal.grounds.as_ref();
        let grounds = grounds.map_or_else(String::new, |grounds| format!(": {}", brief(grounds)));
        format!("{how} {criticality}, {reason}{grounds}")
    }

    /// In full.
    pub(super) fn explain(&self) -> Explanation {
        let mut explanation = Explanation {
            id: self.id(),
            at_ms: self.at_ms,
            title: self.title(),
            ..Explanation::default()
        };
        match &self.event.what {
            What::Refused(refusal) => self.refusal(refusal, &mut explanation),
            What::Ended(ended) => how_it_ended(ended, &mut explanation),
            change => self.change(change, &mut explanation),
        }
        explanation
    }

    fn refusal(&self, refusal: &Refusal, to: &mut Explanation) {
        let customer = refusal.customer.as_deref();
        let name = customer.unwrap_or("everyone else");
        to.fact("Came in", &format!("attempt {} of a request, for {name}", refusal.attempt));
        let mut said = format!("{}, {}", refusal.criticality, from(refusal.criticality_from));
        if refusal.lowered {
            said.push_str("; it claimed more than its sender may, and was lowered to this");
        }
        to.fact("Criticality", &said);
        to.fact(
            "Customer",
            &match (refusal.customer_from, customer) {
                (CustomerFrom::Certificate, Some(name)) => {
                    format!("{name}, by the certificate of its connection")
                }
                (CustomerFrom::XCustomer, Some(name)) => {
                    format!("{name}, by its header x-customer, from one who may speak for others")
                }
                (CustomerFrom::Nobody, _) => "nobody was named: one of everyone else".to_owned(),
                (CustomerFrom::Certificate | CustomerFrom::XCustomer, None) => {
                    let by = refusal.customer_from.name();
                    format!("named by {by}, but without limits of its own: one of everyone else")
                }
            },
        );
        to.fact("Decided", &self.decided(refusal));
        to.fact("Answered", &answered(refusal));
        self.would_change(refusal, to);
    }

    /// Which number stood where.
    fn decided(&self, refusal: &Refusal) -> String {
        match (&refusal.grounds, refusal.reason) {
            (Some(Grounds::Signal { name, value, threshold: Some(threshold) }), _) => format!(
                "{name} stood at {}, over {}, which is what {} may see{}",
                number(*value),
                number(*threshold),
                refusal.criticality,
                self.load(),
            ),
            (Some(grounds), _) => brief(grounds),
            (None, Reason::LameDuck) => "the task is on its way out".to_owned(),
            (None, Reason::DeadlinePassed) => "whoever asked has stopped waiting".to_owned(),
            (None, Reason::Overloaded) => {
                format!("this criticality was being shed{}", self.load())
            }
            (None, reason) => reason.to_string(),
        }
    }

    fn load(&self) -> String {
        match (self.offered_cpus, self.capacity_cpus) {
            (Some(offered), Some(capacity)) => format!(
                "; the task was offered {} CPUs and is capable of {}",
                number(offered),
                number(capacity)
            ),
            _ => String::new(),
        }
    }

    fn would_change(&self, refusal: &Refusal, to: &mut Explanation) {
        let criticality = refusal.criticality;
        let higher = Criticality::from_index(criticality.index() + 1);
        let customer = refusal.customer.as_deref().unwrap_or("everyone else");
        match refusal.reason {
            Reason::Overloaded => {
                if let Some(Grounds::Signal { name, threshold: Some(threshold), .. }) =
                    &refusal.grounds
                {
                    to.change(format!("{name} below {}", number(*threshold)));
                }
                if let (Some(offered), Some(capacity)) = (self.offered_cpus, self.capacity_cpus)
                    && offered > capacity
                {
                    // Up to the next tenth, as a little less would not do.
                    let times = number((offered / capacity.max(0.001) * 10.0).ceil() / 10.0);
                    to.change(format!("{times} times the capacity, or as much less demand"));
                }
                if let Some(higher) = higher {
                    to.change(format!("a higher criticality: {higher} is shed later"));
                }
                let told = refusal.answer.as_ref().map(|answer| answer.advice);
                if told != Some(Advice::DontRetry) {
                    to.change("another task of this service, which may have room".to_owned());
                }
            }
            Reason::OutOfQuota => {
                if let Some(Grounds::Other(Cause::Quota { opens_in })) = &refusal.grounds {
                    to.change(format!("asking {} later", span(*opens_in)));
                }
                let limit = self.limits.map(|limits| limits.get(criticality).as_cpus());
                to.change(match limit {
                    Some(limit) if limit > 0.0 => {
                        format!("a higher limit for {customer}: it is {} CPUs", number(limit))
                    }
                    Some(_) => format!("a limit for {customer}: it may use nothing at all"),
                    None => format!("a higher limit for {customer}"),
                });
                if let Some(higher) = higher {
                    to.change(format!(
                        "a higher criticality: {higher} may go deeper into the same quota"
                    ));
                }
            }
            Reason::DeadlinePassed => {
                to.change("a later deadline, or a caller that asks sooner".to_owned());
            }
            Reason::LameDuck => {
                to.change("another task: this one is on its way out".to_owned());
            }
            _ => to.change("less of what the reason names".to_owned()),
        }
        if refusal.answer.is_none() {
            to.change("it was let in as the task is dark; without that it is refused".to_owned());
        }
    }

    fn change(&self, what: &What, to: &mut Explanation) {
        let grounds = match what {
            What::Shed { grounds, .. } | What::Degrade { grounds, .. } => Some(grounds),
            _ => None,
        };
        if let Some(grounds) = grounds {
            to.fact("Decided", &format!("{}{}", brief(grounds), self.load()));
        }
        let (about, text, otherwise): (_, _, &[&str]) = match what {
            What::Shed { now: Some(_), .. } => (
                "Means",
                "requests of this criticality and below are refused as far as they do not fit; \
                 those above are served",
                &[
                    "less demand, or more tasks",
                    "cheaper requests: degraded answers are asked for first",
                ],
            ),
            What::Shed { now: None, .. } => (
                "Means",
                "all that comes fits again, and has for a second",
                &["demand above the capacity"],
            ),
            What::Degrade { on: true, .. } => (
                "Means",
                "handlers see degrade() and may answer with less, so that nobody need be refused",
                &["less demand, or more tasks"],
            ),
            What::Degrade { on: false, .. } => {
                ("Means", "handlers answer in full", &["demand near the capacity"])
            }
            What::DontRetry(true) => (
                "Means",
                "so many requests are retries that other tasks must be full too; refusals now tell \
                 callers not to try again",
                &["fewer retries among what comes"],
            ),
            What::DontRetry(false) => {
                ("Means", "refused requests may be tried elsewhere", &["many retries"])
            }
            What::LameDuck(true) => (
                "Means",
                "new requests are refused, those in flight are finished",
                &["set_lame_duck(false), or a new task"],
            ),
            What::LameDuck(false) => ("Means", "new requests are taken", &["a stop"]),
            What::Dark(true) => (
                "Means",
                "everything is decided and counted, and nothing refused",
                &["set_dark(false)"],
            ),
            What::Dark(false) => ("Means", "what is decided is done", &["set_dark(true)"]),
            What::Refused(_) | What::Ended(_) => return,
        };
        to.fact(about, text);
        to.would_change.extend(otherwise.iter().map(|&text| text.to_owned()));
    }
}

impl Explanation {
    fn fact(&mut self, about: &str, text: &str) {
        self.facts.push(Fact { about: about.to_owned(), text: text.to_owned() });
    }

    fn change(&mut self, text: String) {
        self.would_change.push(text);
    }
}

fn how_it_ended(ended: &Ended, to: &mut Explanation) {
    let name = ended.customer.as_deref().unwrap_or("everyone else");
    to.fact("Came in", &format!("attempt {} of a request, for {name}", ended.attempt));
    to.fact("Criticality", &format!("{}, as which it was let in", ended.criticality));
    let (decided, otherwise): (_, &[&str]) = match ended.how {
        Ending::OverloadedBelow => (
            "a dependency said \"overloaded; don't retry\" or was given up, and the handler \
             failed: its answer became the same, so that only the layer right above the refusal \
             retries",
            &["room in the dependency", "a handler that makes do without it"],
        ),
        Ending::Cancelled => (
            "its deadline passed before its handler was done, and nobody waits for the answer",
            &["a later deadline", "a handler that is done sooner, or less that waits before it"],
        ),
    };
    to.fact("Decided", decided);
    to.fact("Answered", &told(&ended.answer));
    to.would_change.extend(otherwise.iter().map(|&text| text.to_owned()));
}

/// The numbers behind it, in as many digits as one reads.
fn brief(grounds: &Grounds) -> String {
    match grounds {
        Grounds::Signal { name, value, threshold: Some(threshold) } => {
            format!("{name} at {}, over {}", number(*value), number(*threshold))
        }
        Grounds::Signal { name, value, threshold: None } => {
            format!("{name} at {}", number(*value))
        }
        Grounds::Other(Cause::Quota { opens_in }) => format!("quota opens in {}", span(*opens_in)),
        Grounds::Other(cause) => cause.to_string(),
    }
}

/// Where a criticality was taken from.
const fn from(source: CriticalityFrom) -> &'static str {
    match source {
        CriticalityFrom::Baggage => "by the member criticality of its baggage",
        CriticalityFrom::XCriticality => "by its header x-criticality",
        CriticalityFrom::XRequestCriticality => "by its header x-request-criticality",
        CriticalityFrom::Metadata => "by its gRPC metadata criticality",
        CriticalityFrom::Route => "the default of its method, as it did not say",
        CriticalityFrom::Layer => "the default of its routes, as it did not say",
        CriticalityFrom::Task => "the default of the task, as it did not say",
    }
}

fn answered(refusal: &Refusal) -> String {
    let Some(answer) = &refusal.answer else {
        return "it was let in, as the task is dark".to_owned();
    };
    format!("{}, reason {}, {}", status(answer), refusal.reason, advice(answer))
}

/// What a request was answered that was let in.
fn told(answer: &Answer) -> String {
    format!("{}, {}", status(answer), advice(answer))
}

fn status(answer: &Answer) -> String {
    match answer.code {
        Some(code) => format!("{code:?} in gRPC"),
        None => answer.status.as_u16().to_string(),
    }
}

fn advice(answer: &Answer) -> String {
    match answer.advice {
        Advice::RetryElsewhere => "may be retried elsewhere at once".to_owned(),
        Advice::DontRetry => "not to be retried".to_owned(),
        Advice::RetryAfter(wait) => format!("to be retried after {}", span(wait)),
    }
}

/// A time to wait.
fn span(wait: Duration) -> String {
    let seconds = wait.as_secs_f64();
    if seconds < 1.0 {
        format!("{} ms", number(seconds * 1e3))
    } else if seconds < 1e6 {
        format!("{} s", number(seconds))
    } else {
        "much".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Answer;
    use http::{HeaderMap, StatusCode};
    use tidegate_core::{CostRate, Timestamp};
    use tidegate_wire::reject::DecisionId;

    fn refusal(reason: Reason, grounds: Option<Grounds>) -> Refusal {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Refusal {
            id: DecisionId(0x1f),
            reason,
            criticality: Criticality::Sheddable,
            criticality_from: CriticalityFrom::XCriticality,
            lowered: false,
            customer: Some("shop".into()),
            customer_from: CustomerFrom::Certificate,
            attempt: 2,
            grounds,
            answer: Some(Answer::new(status, &HeaderMap::new(), Advice::RetryElsewhere)),
        }
    }

    fn decision(what: What) -> Decision {
        Decision {
            event: Event { at: Timestamp::from_nanos(255), what },
            at_ms: 1_000,
            offered_cpus: Some(19.0),
            capacity_cpus: Some(1.9),
            limits: Some(Limits::total(CostRate::from_cpus(0.5).expect("a rate"))),
        }
    }

    fn lines(what: What) -> Vec<String> {
        let explained = decision(what).explain();
        let facts = explained.facts.into_iter().map(|f| format!("{}: {}", f.about, f.text));
        let changes = explained.would_change.into_iter().map(|c| format!("? {c}"));
        core::iter::once(explained.title).chain(facts).chain(changes).collect()
    }

    #[test]
    fn a_refusal_for_load_tells_where_everything_came_from() {
        let (name, value, threshold) = ("queue".to_owned(), 2.31, Some(0.85));
        let grounds = Grounds::Signal { name, value, threshold };
        let refused = refusal(Reason::Overloaded, Some(grounds));
        assert_eq!(
            lines(What::Refused(refused)),
            [
                "Refused SHEDDABLE, overloaded: queue at 2.31, over 0.85",
                "Came in: attempt 2 of a request, for shop",
                "Criticality: SHEDDABLE, by its header x-criticality",
                "Customer: shop, by the certificate of its connection",
                "Decided: queue stood at 2.31, over 0.85, which is what SHEDDABLE may see; the \
                 task was offered 19 CPUs and is capable of 1.9",
                "Answered: 503, reason overloaded, may be retried elsewhere at once",
                "? queue below 0.85",
                "? 10 times the capacity, or as much less demand",
                "? a higher criticality: SHEDDABLE_PLUS is shed later",
                "? another task of this service, which may have room",
            ]
        );
    }

    #[test]
    fn whoever_is_told_not_to_retry_is_not_sent_to_another_task() {
        let elsewhere = |advice| {
            let mut refused = refusal(Reason::Overloaded, None);
            let status = StatusCode::SERVICE_UNAVAILABLE;
            refused.answer = Some(Answer::new(status, &HeaderMap::new(), advice));
            let lines = lines(What::Refused(refused));
            lines.iter().any(|line| line.contains("another task"))
        };
        assert!(elsewhere(Advice::RetryElsewhere));
        assert!(!elsewhere(Advice::DontRetry));
    }

    #[test]
    fn a_refusal_for_quota_tells_when_and_how_much() {
        let opens_in = Duration::from_millis(13);
        let mut refused =
            refusal(Reason::OutOfQuota, Some(Grounds::Other(Cause::Quota { opens_in })));
        refused.lowered = true;
        let lines = lines(What::Refused(refused));
        assert!(
            lines.contains(
                &"Criticality: SHEDDABLE, by its header x-criticality; it claimed more than its \
              sender may, and was lowered to this"
                    .to_owned()
            )
        );
        assert_eq!(
            &lines[lines.len() - 3..],
            [
                "? asking 13 ms later",
                "? a higher limit for shop: it is 0.5 CPUs",
                "? a higher criticality: SHEDDABLE_PLUS may go deeper into the same quota",
            ]
        );
    }

    #[test]
    fn every_reason_and_every_change_says_what_would_be_otherwise() {
        for reason in Reason::ALL {
            for answer in [true, false] {
                let mut refused = refusal(reason, None);
                refused.customer = None;
                refused.answer = refused.answer.filter(|_| answer);
                let explained = decision(What::Refused(refused)).explain();
                assert_eq!(explained.facts.len(), 5, "{reason}");
                assert!(!explained.would_change.is_empty(), "{reason}");
                let dark = explained.facts[4].text.contains("dark");
                assert_eq!(dark, !answer, "{reason}");
            }
        }
        for how in [Ending::OverloadedBelow, Ending::Cancelled] {
            let ended = Ended {
                id: DecisionId(0x1f),
                how,
                criticality: Criticality::Sheddable,
                customer: None,
                attempt: 1,
                answer: Answer::new(StatusCode::OK, &HeaderMap::new(), Advice::DontRetry),
            };
            let decision = decision(What::Ended(ended));
            assert_eq!(
                (decision.id(), decision.kind()),
                (DecisionId(0x1f).to_string(), how.name())
            );
            assert!(!decision.shown().change && decision.shown().criticality.is_some());
            let explained = decision.explain();
            assert_eq!((explained.facts.len(), explained.would_change.len()), (4, 2));
            assert!(explained.title.starts_with("SHEDDABLE "), "{}", explained.title);
        }
        let grounds = Grounds::Signal { name: "queue".into(), value: 2.0, threshold: None };
        let mut changes = vec![
            What::Shed { before: None, now: Some(Criticality::Critical), grounds: grounds.clone() },
            What::Shed { before: None, now: None, grounds: grounds.clone() },
        ];
        for on in [true, false] {
            let grounds = grounds.clone();
            changes.push(What::Degrade { criticality: Criticality::Critical, on, grounds });
            changes.extend([What::DontRetry(on), What::LameDuck(on), What::Dark(on)]);
        }
        // All of one tick: those of one moment can be told apart.
        let ids: std::collections::BTreeSet<_> =
            changes.iter().map(|change| decision(change.clone()).id()).collect();
        assert_eq!(ids.len(), 5, "{ids:?}");
        for change in changes {
            let decision = decision(change);
            assert!(decision.is_change() && decision.shown().change);
            assert!(decision.id().starts_with("change-ff-"));
            let explained = decision.explain();
            assert!(!explained.facts.is_empty() && !explained.would_change.is_empty());
            assert!(explained.title.starts_with(char::is_uppercase), "{}", explained.title);
        }
    }
}
