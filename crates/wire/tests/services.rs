//! The generated services are reached under the names that others call.
#![cfg(feature = "grpc")]

use tidegate_wire::proto::doorman::capacity_server;
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server;
use tidegate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_server;
use tidegate_wire::proto::grpc::health::v1::health_server;
use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_server;

#[test]
fn names_are_those_on_the_wire() {
    for (name, expected) in [
        (capacity_server::SERVICE_NAME, "doorman.Capacity"),
        (
            rate_limit_quota_service_server::SERVICE_NAME,
            "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        ),
        (rate_limit_service_server::SERVICE_NAME, "envoy.service.ratelimit.v3.RateLimitService"),
        (health_server::SERVICE_NAME, "grpc.health.v1.Health"),
        (open_rca_service_server::SERVICE_NAME, "xds.service.orca.v3.OpenRcaService"),
    ] {
        assert_eq!(name, expected);
    }
}
