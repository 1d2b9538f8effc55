//! Whether the `.proto` files say what is spoken on the wire.
//!
//! The table is written by hand from the wire formats: message, then `number name type`, with `*`
//! for repeated, `!` for required and `?` for optional in the sense of proto2. A number that is
//! wrong in both places would have to be wrong twice.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, MessageOptions};
use std::collections::BTreeMap;
use tidegate_codegen::{Failure, descriptors};

const MESSAGES: &str = "
xds.data.orca.v3.OrcaLoadReport: 1 cpu_utilization double, 2 mem_utilization double, 3 rps uint64, \
4 request_cost map<string,double>, 5 utilization map<string,double>, 6 rps_fractional double, \
7 eps double, 8 named_metrics map<string,double>, 9 application_utilization double
xds.service.orca.v3.OrcaLoadReportRequest: 1 report_interval Duration, 2 request_cost_names string*
google.rpc.Status: 1 code int32, 2 message string, 3 details Any*
google.rpc.RetryInfo: 1 retry_delay Duration
google.rpc.QuotaFailure: 1 violations Violation*
google.rpc.QuotaFailure.Violation: 1 subject string, 2 description string
grpc.health.v1.HealthCheckRequest: 1 service string
grpc.health.v1.HealthCheckResponse: 1 status ServingStatus
envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports: 1 domain string, \
2 bucket_quota_usages BucketQuotaUsage*
envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage: \
1 bucket_id BucketId, 2 time_elapsed Duration, 3 num_requests_allowed uint64, \
4 num_requests_denied uint64
envoy.service.rate_limit_quota.v3.BucketId: 1 bucket map<string,string>
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse: 1 bucket_action BucketAction*
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction: 1 bucket_id BucketId, \
2 quota_assignment_action QuotaAssignmentAction, 3 abandon_action AbandonAction
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction: \
2 assignment_time_to_live Duration, 3 rate_limit_strategy RateLimitStrategy
envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction:
envoy.type.v3.RateLimitStrategy: 1 blanket_rule BlanketRule, \
2 requests_per_time_unit RequestsPerTimeUnit, 3 token_bucket TokenBucket
envoy.type.v3.RateLimitStrategy.RequestsPerTimeUnit: 1 requests_per_time_unit uint64, \
2 time_unit RateLimitUnit
envoy.type.v3.TokenBucket: 1 max_tokens uint32, 2 tokens_per_fill UInt32Value, \
3 fill_interval Duration
envoy.service.ratelimit.v3.RateLimitRequest: 1 domain string, 2 descriptors RateLimitDescriptor*, \
3 hits_addend uint32
envoy.service.ratelimit.v3.RateLimitResponse: 1 overall_code Code, 2 statuses DescriptorStatus*, \
3 response_headers_to_add HeaderValue*, 4 request_headers_to_add HeaderValue*, 5 raw_body bytes, \
6 dynamic_metadata Struct
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit: 1 requests_per_unit uint32, 2 unit Unit, \
3 name string
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus: 1 code Code, \
2 current_limit RateLimit, 3 limit_remaining uint32, 4 duration_until_reset Duration
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor: 1 entries Entry*, \
2 limit RateLimitOverride, 3 hits_addend UInt64Value, 4 is_negative_hits bool
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry: 1 key string, 2 value string
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride: \
1 requests_per_unit uint32, 2 unit RateLimitUnit
envoy.config.core.v3.HeaderValue: 1 key string, 2 value string, 3 raw_value bytes
doorman.Lease: 1 expiry_time int64!, 2 refresh_interval int64!, 3 capacity double!
doorman.ResourceRequest: 1 resource_id string!, 2 priority int64!, 3 has Lease?, 4 wants double!
doorman.GetCapacityRequest: 1 client_id string!, 2 resource ResourceRequest*
doorman.ResourceResponse: 1 resource_id string!, 2 gets Lease!, 3 safe_capacity double?
doorman.Mastership: 1 master_address string?
doorman.GetCapacityResponse: 1 response ResourceResponse*, 2 mastership Mastership?
doorman.PriorityBandAggregate: 1 priority int64!, 2 num_clients int64!, 3 wants double!
doorman.ServerCapacityResourceRequest: 1 resource_id string!, 2 has Lease?, \
3 wants PriorityBandAggregate*
doorman.GetServerCapacityRequest: 1 server_id string!, 2 resource ServerCapacityResourceRequest*
doorman.ServerCapacityResourceResponse: 1 resource_id string!, 2 gets Lease!, \
3 algorithm Algorithm?, 4 safe_capacity double?
doorman.GetServerCapacityResponse: 1 response ServerCapacityResourceResponse*, \
2 mastership Mastership?
doorman.ReleaseCapacityRequest: 1 client_id string!, 2 resource_id string*
doorman.ReleaseCapacityResponse: 1 mastership Mastership?
doorman.NamedParameter: 1 name string!, 2 value string?
doorman.Algorithm: 1 kind Kind!, 2 lease_length int64!, 3 refresh_interval int64!, \
4 parameters NamedParameter*, 5 learning_mode_duration int64?
doorman.ResourceTemplate: 1 identifier_glob string!, 2 capacity double!, 3 algorithm Algorithm!, \
4 safe_capacity double?, 5 description string?
doorman.ResourceRepository: 1 resources ResourceTemplate*
doorman.DiscoveryRequest:
doorman.DiscoveryResponse: 1 mastership Mastership!, 2 is_master bool!
mvccpb.KeyValue: 1 key bytes, 2 create_revision int64, 3 mod_revision int64, 4 version int64, \
5 value bytes, 6 lease int64
mvccpb.Event: 1 type EventType, 2 kv KeyValue, 3 prev_kv KeyValue
etcdserverpb.ResponseHeader: 1 cluster_id uint64, 2 member_id uint64, 3 revision int64, \
4 raft_term uint64
etcdserverpb.RangeRequest: 1 key bytes, 2 range_end bytes, 3 limit int64, 4 revision int64, \
7 serializable bool, 8 keys_only bool
etcdserverpb.RangeResponse: 1 header ResponseHeader, 2 kvs KeyValue*, 3 more bool, 4 count int64
etcdserverpb.PutRequest: 1 key bytes, 2 value bytes, 3 lease int64
etcdserverpb.PutResponse: 1 header ResponseHeader
etcdserverpb.DeleteRangeRequest: 1 key bytes, 2 range_end bytes
etcdserverpb.DeleteRangeResponse: 1 header ResponseHeader, 2 deleted int64
etcdserverpb.RequestOp: 1 request_range RangeRequest, 2 request_put PutRequest, \
3 request_delete_range DeleteRangeRequest
etcdserverpb.ResponseOp: 1 response_range RangeResponse, 2 response_put PutResponse, \
3 response_delete_range DeleteRangeResponse
etcdserverpb.Compare: 1 result CompareResult, 2 target CompareTarget, 3 key bytes, \
4 version int64, 5 create_revision int64, 6 mod_revision int64, 7 value bytes, 8 lease int64, \
64 range_end bytes
etcdserverpb.TxnRequest: 1 compare Compare*, 2 success RequestOp*, 3 failure RequestOp*
etcdserverpb.TxnResponse: 1 header ResponseHeader, 2 succeeded bool, 3 responses ResponseOp*
etcdserverpb.WatchRequest: 1 create_request WatchCreateRequest, \
2 cancel_request WatchCancelRequest
etcdserverpb.WatchCreateRequest: 1 key bytes, 2 range_end bytes, 3 start_revision int64, \
4 progress_notify bool
etcdserverpb.WatchCancelRequest: 1 watch_id int64
etcdserverpb.WatchResponse: 1 header ResponseHeader, 2 watch_id int64, 3 created bool, \
4 canceled bool, 5 compact_revision int64, 6 cancel_reason string, 7 fragment bool, \
11 events Event*
etcdserverpb.LeaseGrantRequest: 1 TTL int64, 2 ID int64
etcdserverpb.LeaseGrantResponse: 1 header ResponseHeader, 2 ID int64, 3 TTL int64, 4 error string
etcdserverpb.LeaseRevokeRequest: 1 ID int64
etcdserverpb.LeaseRevokeResponse: 1 header ResponseHeader
etcdserverpb.LeaseKeepAliveRequest: 1 ID int64
etcdserverpb.LeaseKeepAliveResponse: 1 header ResponseHeader, 2 ID int64, 3 TTL int64
etcdserverpb.AuthEnableRequest:
etcdserverpb.AuthEnableResponse: 1 header ResponseHeader
etcdserverpb.AuthenticateRequest: 1 name string, 2 password string
etcdserverpb.AuthenticateResponse: 1 header ResponseHeader, 2 token string
etcdserverpb.AuthUserAddRequest: 1 name string, 2 password string
etcdserverpb.AuthUserAddResponse: 1 header ResponseHeader
etcdserverpb.AuthUserGrantRoleRequest: 1 user string, 2 role string
etcdserverpb.AuthUserGrantRoleResponse: 1 header ResponseHeader
etcdserverpb.AuthRoleAddRequest: 1 name string
etcdserverpb.AuthRoleAddResponse: 1 header ResponseHeader
tidegate.quota.v1.TaskMessage: 1 hello Hello, 2 report Usages, 3 acked Generation, 4 leaves bool
tidegate.quota.v1.Hello: 1 service string, 2 task string, 3 resumes TaskId, 4 weight uint32, \
5 epoch_seen uint64, 6 reign uint64
tidegate.quota.v1.TaskId: 1 epoch uint64, 2 number uint64
tidegate.quota.v1.Generation: 1 epoch uint64, 2 number uint64
tidegate.quota.v1.Usages: 1 number uint64, 2 customers uint32*, 3 levels bytes, 4 rates uint64*, \
5 holds Holding*
tidegate.quota.v1.Holding: 1 customer uint32, 2 limits uint64*
tidegate.quota.v1.ServerMessage: 1 welcome Welcome, 2 answers uint64, 3 directory bytes, \
4 gone uint32*, 5 grants Grants, 6 learning bool, 7 redirect Redirect, 8 places uint64, \
9 acknowledge bool
tidegate.quota.v1.Welcome: 1 task TaskId, 2 joined bool, 3 report_every_ms uint32, \
4 hold_ms uint32, 5 tau_ms uint32, 6 safe uint32
tidegate.quota.v1.Directory: 1 customers Customer*
tidegate.quota.v1.Customer: 1 number uint32, 2 name string, 3 aside uint64*
tidegate.quota.v1.Grants: 1 number uint64, 2 customers uint32*, 3 limits uint64*, 4 revoked uint32*
tidegate.quota.v1.Redirect: 1 leader string
tidegate.quota.v1.StatusRequest: 1 service string
tidegate.quota.v1.StatusResponse: 1 epoch uint64, 2 services ServiceStatus*, 3 refused string, \
4 leads bool, 5 leader string, 6 trouble string
tidegate.quota.v1.ServiceStatus: 1 service string, 2 learning bool, 3 tasks uint32, \
4 capacity uint64, 5 customers CustomerStatus*, 6 overs Over*, 7 memory uint64
tidegate.quota.v1.CustomerStatus: 1 name string, 2 limits uint64*, 3 used uint64*, \
4 demand uint64*, 5 counted uint64*, 6 tasks uint32, 7 memory uint64
tidegate.quota.v1.Over: 1 customer string, 2 began_ms uint64, 3 ended_ms uint64, \
4 demand_max uint64
";

const ENUMS: &str = "
grpc.health.v1.HealthCheckResponse.ServingStatus: 0 UNKNOWN, 1 SERVING, 2 NOT_SERVING, \
3 SERVICE_UNKNOWN
envoy.type.v3.RateLimitStrategy.BlanketRule: 0 ALLOW_ALL, 1 DENY_ALL
envoy.type.v3.RateLimitUnit: 0 UNKNOWN, 1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR
envoy.service.ratelimit.v3.RateLimitResponse.Code: 0 UNKNOWN, 1 OK, 2 OVER_LIMIT
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit: 0 UNKNOWN, 1 SECOND, 2 MINUTE, \
3 HOUR, 4 DAY, 5 MONTH, 6 YEAR
mvccpb.Event.EventType: 0 PUT, 1 DELETE
etcdserverpb.Compare.CompareResult: 0 EQUAL, 1 GREATER, 2 LESS, 3 NOT_EQUAL
etcdserverpb.Compare.CompareTarget: 0 VERSION, 1 CREATE, 2 MOD, 3 VALUE, 4 LEASE
doorman.Algorithm.Kind: 0 NO_ALGORITHM, 1 STATIC, 2 PROPORTIONAL_SHARE, 3 FAIR_SHARE
";

const METHODS: &str = "
/doorman.Capacity/Discovery unary
/doorman.Capacity/GetCapacity unary
/doorman.Capacity/GetServerCapacity unary
/doorman.Capacity/ReleaseCapacity unary
/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas both
/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit unary
/etcdserverpb.Auth/AuthEnable unary
/etcdserverpb.Auth/Authenticate unary
/etcdserverpb.Auth/RoleAdd unary
/etcdserverpb.Auth/UserAdd unary
/etcdserverpb.Auth/UserGrantRole unary
/etcdserverpb.KV/DeleteRange unary
/etcdserverpb.KV/Put unary
/etcdserverpb.KV/Range unary
/etcdserverpb.KV/Txn unary
/etcdserverpb.Lease/LeaseGrant unary
/etcdserverpb.Lease/LeaseKeepAlive both
/etcdserverpb.Lease/LeaseRevoke unary
/etcdserverpb.Watch/Watch both
/grpc.health.v1.Health/Check unary
/grpc.health.v1.Health/Watch server
/tidegate.quota.v1.Quota/Report both
/tidegate.quota.v1.Quota/Status unary
/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics server
";

/// Lines by what stands before the first colon or blank.
fn table(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let split = |line: &str| {
        let at = line.find([':', ' ']).unwrap_or(line.len());
        (line[..at].to_owned(), line[at..].trim_start_matches(':').trim().to_owned())
    };
    lines.map(split).collect()
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A map is written as messages of a name and a value.
fn is_map(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(MessageOptions::map_entry)
}

fn field(field: &FieldDescriptorProto, message: &DescriptorProto, proto2: bool) -> String {
    let scalar = |kind: Type| kind.as_str_name().trim_start_matches("TYPE_").to_lowercase();
    let kind = match field.r#type() {
        Type::Message | Type::Enum => last(field.type_name()).to_owned(),
        kind => scalar(kind),
    };
    let entry = message.nested_type.iter().find(|nested| nested.name() == kind && is_map(nested));
    let kind = if let Some(entry) = entry {
        let of = |n: usize| scalar(entry.field[n].r#type());
        format!("map<{},{}>", of(0), of(1))
    } else {
        let mark = match field.label() {
            Label::Repeated => "*",
            Label::Required => "!",
            Label::Optional if proto2 => "?",
            Label::Optional => "",
        };
        format!("{kind}{mark}")
    };
    format!("{} {} {kind}", field.number(), field.name())
}

#[derive(Default)]
struct Found {
    messages: BTreeMap<String, String>,
    enums: BTreeMap<String, String>,
    methods: BTreeMap<String, String>,
}

impl Found {
    fn message(&mut self, scope: &str, message: &DescriptorProto, proto2: bool) {
        if is_map(message) {
            return;
        }
        let path = format!("{scope}.{}", message.name());
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let texts: Vec<_> = fields.into_iter().map(|f| field(f, message, proto2)).collect();
        for nested in &message.nested_type {
            self.message(&path, nested, proto2);
        }
        for nested in &message.enum_type {
            self.enumeration(&path, nested);
        }
        self.messages.insert(path, texts.join(", "));
    }

    fn enumeration(&mut self, scope: &str, found: &prost_types::EnumDescriptorProto) {
        let values = found.value.iter().map(|value| format!("{} {}", value.number(), value.name()));
        let values: Vec<_> = values.collect();
        self.enums.insert(format!("{scope}.{}", found.name()), values.join(", "));
    }
}

#[test]
fn files_say_what_is_spoken() -> Result<(), Failure> {
    let mut found = Found::default();
    let files = descriptors()?.file;
    for file in files.iter().filter(|file| !file.package().starts_with("google.protobuf")) {
        for message in &file.message_type {
            found.message(file.package(), message, file.syntax() != "proto3");
        }
        for enumeration in &file.enum_type {
            found.enumeration(file.package(), enumeration);
        }
        for service in &file.service {
            for method in &service.method {
                let streams = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => "unary",
                    (false, true) => "server",
                    (true, false) => "client",
                    (true, true) => "both",
                };
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                found.methods.insert(path, streams.to_owned());
            }
        }
    }
    assert_eq!(found.messages, table(MESSAGES));
    assert_eq!(found.enums, table(ENUMS));
    assert_eq!(found.methods, table(METHODS));
    Ok(())
}
