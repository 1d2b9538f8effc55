//! What is decided, in spans of `tracing`.

use axum::body::Body;
use http::Request;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tidegate::Task;
use tidegate_core::levels::Levels;
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Fields = BTreeMap<&'static str, String>;

/// Keeps the fields of all spans and events of ours.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Fields>>>);

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tidegate"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut all = self.0.lock().unwrap();
        let mut fields = Fields::new();
        span.record(&mut Into(&mut fields));
        all.push(fields);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let index = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut Into(&mut self.0.lock().unwrap()[index]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Into(&mut fields));
        self.0.lock().unwrap().push(fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn decisions_are_fields_of_spans() {
    let kept = Kept::default();
    let _here = tracing::subscriber::set_default(kept.clone());
    let task = Task::builder("test").build().unwrap();
    let router = crate::support::hello(&task);
    let ask = || async { drop(router.clone().oneshot(Request::new(Body::empty())).await) };
    ask().await;
    task.gate().set_levels(Levels::CLOSED);
    ask().await;
    task.set_dark(true);
    ask().await;
    let all = kept.0.lock().unwrap().clone();
    let field = |index: usize, name| all[index].get(name).map(String::as_str);
    assert_eq!(all.len(), 3, "{all:?}");
    for (index, decision, reason) in
        [(0, "admit", None), (1, "reject", Some("overloaded")), (2, "dark", Some("overloaded"))]
    {
        assert_eq!(field(index, "decision"), Some(decision));
        assert_eq!(field(index, "reason"), reason);
        assert_eq!(field(index, "criticality"), Some("CRITICAL"));
        assert_eq!(field(index, "id").map(str::len), Some(16));
        let cost = field(index, "cost").map(|cost| cost.parse::<f64>().unwrap());
        assert_eq!(cost.is_some_and(|cost| cost > 0.0), decision != "reject");
    }
}
