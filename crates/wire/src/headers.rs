//! The names of the headers, each once.
//!
//! gRPC metadata are HTTP/2 headers, so one list serves both. Names that end in `-bin` carry
//! base64.

use http::HeaderName;

macro_rules! names {
    ($($(#[$about:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$about])* pub static $constant: HeaderName = HeaderName::from_static($name);)*
    };
}

names! {
    /// W3C baggage: rides along through every OpenTelemetry SDK. Criticality is a member of it.
    BAGGAGE = "baggage";
    /// Criticality, for those who do not read baggage.
    X_CRITICALITY = "x-criticality";
    /// Criticality as others name it. Read, never written.
    X_REQUEST_CRITICALITY = "x-request-criticality";
    /// Criticality as gRPC metadata of its own. Read, never written.
    CRITICALITY = "criticality";
    /// Which try this is, from 1. Envoy sets it anew at every hop.
    X_ENVOY_ATTEMPT_COUNT = "x-envoy-attempt-count";
    /// How many tries there were before this one. Absent on the first.
    GRPC_PREVIOUS_RPC_ATTEMPTS = "grpc-previous-rpc-attempts";
    /// How long the caller waits, as gRPC writes it.
    GRPC_TIMEOUT = "grpc-timeout";
    /// How long the caller waits, in milliseconds, as Envoy writes it.
    X_ENVOY_EXPECTED_RQ_TIMEOUT_MS = "x-envoy-expected-rq-timeout-ms";
    /// Whom the work is charged to. Believed only from delegators.
    X_CUSTOMER = "x-customer";
    /// RFC 9218: how urgent whoever asks finds it. Can only lower.
    PRIORITY = "priority";

    /// Why a request was refused: the code of a reason.
    X_TIDEGATE_REASON = "x-tidegate-reason";
    /// Which decision it was, to be found again in events and logs.
    X_TIDEGATE_DECISION = "x-tidegate-decision";
    /// Why an answer is a copy of an earlier one: the code of a reason.
    X_TIDEGATE_DEGRADED = "x-tidegate-degraded";
    /// The numbers behind a refusal. For peers that are trusted.
    X_TIDEGATE_CAUSE = "x-tidegate-cause";
    /// Tells Envoy not to retry.
    X_ENVOY_RATELIMITED = "x-envoy-ratelimited";
    /// Tells Envoy that this task is on its way out.
    X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL = "x-envoy-immediate-health-check-fail";
    /// The status of a gRPC call, in decimal.
    GRPC_STATUS = "grpc-status";
    /// What went wrong, percent-encoded.
    GRPC_MESSAGE = "grpc-message";
    /// What went wrong, as a `google.rpc.Status`.
    GRPC_STATUS_DETAILS_BIN = "grpc-status-details-bin";
    /// When to retry: milliseconds, negative for never.
    GRPC_RETRY_PUSHBACK_MS = "grpc-retry-pushback-ms";

    /// An ORCA load report, as base64 of its protobuf.
    ENDPOINT_LOAD_METRICS_BIN = "endpoint-load-metrics-bin";
    /// An ORCA load report behind a word that says how it is written: `BIN`, `JSON` or `TEXT`.
    ENDPOINT_LOAD_METRICS = "endpoint-load-metrics";
    /// By which a request over HTTP asks for a report: `BIN`, `JSON` or `TEXT`.
    ENDPOINT_LOAD_METRICS_FORMAT = "endpoint-load-metrics-format";
}
