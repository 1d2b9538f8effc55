//! What the others are told in each case.

use super::Case;
use std::net::SocketAddr;

pub(super) fn nginx(
    case: Case,
    address: SocketAddr,
    upstream: SocketAddr,
    directory: &std::path::Path,
) -> String {
    let http2 = if case.is_http2() { " http2" } else { "" };
    let answer = match case {
        _ if case.refuses() => "return 503;",
        _ if case.is_http2_behind() => "grpc_pass grpc://behind;",
        _ => "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_pass http://behind;",
    };
    let directory = directory.display();
    format!(
        "daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
  fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  upstream behind {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen {address}{http2};
    location / {{ {answer} }}
  }}
}}
"
    )
}

pub(super) fn haproxy(case: Case, address: SocketAddr, upstream: SocketAddr) -> String {
    let http2 = if case.is_http2() { " proto h2" } else { "" };
    let refuse = if case.refuses() { "  http-request return status 503\n" } else { "" };
    let behind = if case.is_http2_behind() { " proto h2" } else { "" };
    format!(
        "global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
frontend front
  bind {address}{http2}
{refuse}  default_backend behind
backend behind
  server one {upstream}{behind}
"
    )
}

/// Where Envoy's filters are.
const TYPES: &str = "type.googleapis.com/envoy.extensions.filters";

pub(super) fn envoy(case: Case, address: SocketAddr, upstream: SocketAddr) -> String {
    let codec = if case.is_http2() { "HTTP2" } else { "HTTP1" };
    let action = if case.refuses() {
        "direct_response: { status: 503 }"
    } else {
        "route: { cluster: behind }"
    };
    let behind = if case.is_http2_behind() {
        "    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
"
    } else {
        ""
    };
    format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          \"@type\": {TYPES}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          codec_type: {codec}
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{ prefix: / }}
                {action}
          http_filters:
          - name: router
            typed_config:
              \"@type\": {TYPES}.http.router.v3.Router
  clusters:
  - name: behind
    type: STATIC
{behind}    circuit_breakers:
      thresholds:
      - {{ max_connections: 4096, max_requests: 100000, max_pending_requests: 100000 }}
    load_assignment:
      cluster_name: behind
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: 127.0.0.1, port_value: {upstream} }} }}
",
        port = address.port(),
        upstream = upstream.port(),
    )
}
