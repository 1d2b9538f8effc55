//! The page for operators names everything that there is.

use tidegate_core::decision::Reason;
use tidegate_wire::faults::Fault;
use tidegate_wire::headers;

const PAGE: &str = include_str!("../../../docs/wire.md");

#[test]
fn the_page_names_every_header_fault_and_reason() {
    let names = [
        &headers::BAGGAGE,
        &headers::X_CRITICALITY,
        &headers::X_REQUEST_CRITICALITY,
        &headers::CRITICALITY,
        &headers::X_ENVOY_ATTEMPT_COUNT,
        &headers::GRPC_PREVIOUS_RPC_ATTEMPTS,
        &headers::GRPC_TIMEOUT,
        &headers::X_ENVOY_EXPECTED_RQ_TIMEOUT_MS,
        &headers::X_CUSTOMER,
        &headers::PRIORITY,
        &headers::X_TIDEGATE_REASON,
        &headers::X_TIDEGATE_DECISION,
        &headers::X_TIDEGATE_CAUSE,
        &headers::X_TIDEGATE_DEGRADED,
        &headers::X_ENVOY_RATELIMITED,
        &headers::X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL,
        &headers::GRPC_STATUS_DETAILS_BIN,
        &headers::GRPC_RETRY_PUSHBACK_MS,
        &headers::ENDPOINT_LOAD_METRICS_BIN,
        &headers::ENDPOINT_LOAD_METRICS,
    ];
    let names = names.into_iter().map(http::HeaderName::as_str);
    let codes = Fault::ALL.into_iter().map(Fault::code);
    let reasons = Reason::ALL.into_iter().map(Reason::code);
    for name in names.chain(codes).chain(reasons) {
        let starts = [format!("`{name}`"), format!("`{name}:")];
        assert!(starts.iter().any(|start| PAGE.contains(start)), "{name} is not in docs/wire.md");
    }
}
