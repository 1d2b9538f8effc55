//! Every key of a quota server's file. `docs/quota.md` has a row for each.

use super::kinds::Kind::{
    Address, Any, Bool, Count, File, Ignored, Limit, List, Memory, Number, Share, Some, Span, Text,
    Whole, Word,
};
use super::tree::{self, Row};
use serde_json::{Value, json};

pub(super) const ROWS: &[Row] = &[
    ("quota.listen", Address, "Where tasks find the server."),
    ("quota.tls.cert!", File, "The server's certificate and those that lead to a root."),
    ("quota.tls.key!", File, "Its key."),
    ("quota.tls.client_ca", File, "The roots that callers' certificates have to come from."),
    ("quota.trust_network", Bool, "Listens beyond loopback though nobody is asked who they are."),
    ("quota.operators", List(&Text), "Who may see how everything stands."),
    ("quota.parent.servers!", List(&Text), "The global server, if this one is a zone's."),
    ("quota.parent.name", Text, "What this one is called there."),
    ("quota.parent.weight", Some, "For how many tasks it stands there."),
    ("quota.parent.tls.ca", File, "The roots that the global server's certificate comes from."),
    ("quota.parent.tls.cert", File, "What to show there."),
    ("quota.parent.tls.key", File, "Its key."),
    ("quota.election.etcd!", List(&Text), "Members of the etcd that all servers share."),
    ("quota.election.prefix", Text, "What all keys in etcd begin with."),
    ("quota.election.ttl", Span, "How long the leader's lease in etcd is."),
    ("quota.election.tls.ca", File, "The roots that certificates of etcd come from."),
    ("quota.election.tls.cert", File, "What to show there."),
    ("quota.election.tls.key", File, "Its key."),
    ("quota.election.user", Text, "As whom to ask, if etcd wants to know."),
    ("quota.election.password_file", File, "Where the password of that user is."),
    ("quota.state", File, "Where the server remembers its last election and whom it led."),
    ("quota.advertise", Text, "What others call this server: host and port."),
    ("quota.services.*.capacity.cpu", Number, "CPUs of all tasks together; only to show."),
    ("quota.services.*.capacity.memory", Memory, "Their memory; only to show."),
    ("quota.services.*.default!", Limit, "What everyone who is not named may use together."),
    ("quota.services.*.tasks", List(&Text), "Who may report for the service."),
    ("quota.services.*.zones", List(&Text), "Who may report for other tasks as well."),
    ("quota.services.*.envoys", List(&Text), "Who may ask and report by RLS and RLQS."),
    ("quota.services.*.hit", Span, "What a request costs that an Envoy counts."),
    ("quota.services.*.customers.*", Limit, "What this customer may use."),
    ("quota.services.*.reports.every", Span, "How often tasks report."),
    ("quota.services.*.reports.round", Span, "How often limits are divided and pushed."),
    ("quota.services.*.silence.hold", Span, "How long a task keeps its limits without a server."),
    ("quota.services.*.silence.fade", Span, "How fast they fade to the safe share after that."),
    ("quota.services.*.silence.forget", Span, "How long a task that vanished still counts."),
    ("quota.services.*.silence.learning", Span, "How long a new leader learns."),
    ("quota.services.*.shares.floor", Share, "Of each limit, divided equally."),
    ("quota.services.*.shares.unseen", Share, "Of each limit, for tasks without a grant."),
    ("quota.services.*.shares.safe", Share, "Of its limits, what a task falls back to."),
    ("quota.services.*.sizes.tasks", Some, "The most tasks."),
    ("quota.services.*.sizes.customers", Some, "The most customers, everyone else included."),
    ("quota.services.*.sizes.customers_per_task", Some, "The most customers of one task."),
    ("quota.services.*.sizes.weight", Some, "For how many tasks one may stand."),
    ("quota.doorman.clients", List(&Text), "Who may ask."),
    ("quota.doorman.servers", List(&Text), "Who may ask for many clients at once."),
    ("quota.doorman.parent.servers!", List(&Text), "The server above in Doorman's tree."),
    ("quota.doorman.parent.name", Text, "What this one is called there."),
    ("quota.doorman.parent.tls.ca", File, "The roots that its certificate comes from."),
    ("quota.doorman.parent.tls.cert", File, "What to show there."),
    ("quota.doorman.parent.tls.key", File, "Its key."),
    ("quota.doorman.resources[].clients", List(&Text), "Who may ask for it."),
    ("quota.doorman.resources[].identifier_glob!", Text, "A name, or a pattern."),
    ("quota.doorman.resources[].capacity!", Number, "How much there is a second."),
    ("quota.doorman.resources[].safe_capacity", Any, "What a client uses without a lease."),
    ("quota.doorman.resources[].description", Text, "For people."),
    (
        "quota.doorman.resources[].algorithm.kind!",
        Word(&["NO_ALGORITHM", "STATIC", "PROPORTIONAL_SHARE", "FAIR_SHARE"]),
        "How it is shared out.",
    ),
    ("quota.doorman.resources[].algorithm.lease_length!", Count, "Seconds that a lease holds."),
    ("quota.doorman.resources[].algorithm.refresh_interval!", Some, "Seconds between requests."),
    ("quota.doorman.resources[].algorithm.learning_mode_duration", Whole, "Seconds to learn."),
    ("quota.doorman.resources[].algorithm.parameters", Ignored, "Passed over."),
];

pub(super) fn schema() -> Value {
    let mut schema = tree::object(&[ROWS]);
    if let Value::Object(schema) = &mut schema {
        let uri = "https://json-schema.org/draft/2020-12/schema";
        schema.insert("$schema".to_owned(), Value::from(uri));
        schema.insert("title".to_owned(), Value::from("tidegate quota"));
        schema.insert("required".to_owned(), json!(["quota"]));
        schema.insert("$defs".to_owned(), Value::Object(super::kinds::definitions()));
    }
    schema
}
