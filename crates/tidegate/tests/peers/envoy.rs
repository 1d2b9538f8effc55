//! Envoys in front of tasks.

use crate::backend::Backend;
use crate::peer::{Envoy, Peers};

/// What a test fills into `envoy.yaml`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// What Envoy speaks to tasks.
    pub(crate) protocol: Protocol,
    pub(crate) retry: &'static str,
    pub(crate) policy: &'static str,
    /// What it adds to requests.
    pub(crate) add: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Whatever tells Envoy to retry, and next to no pause.
pub(crate) const RETRY_ALL: &str = "{ num_retries: 2, retriable_status_codes: [429], \
     retry_on: '5xx,gateway-error,retriable-status-codes,cancelled,deadline-exceeded,internal,\
     resource-exhausted,unavailable', \
     retry_back_off: { base_interval: 0.001s, max_interval: 0.001s } }";

/// In turn.
pub(crate) const ROUND_ROBIN: &str = "{ name: round_robin, typed_config: { '@type': \
     type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin } }";

impl Config {
    pub(crate) const fn new(protocol: Protocol) -> Self {
        Self { protocol, retry: "{}", policy: ROUND_ROBIN, add: "[]" }
    }

    pub(crate) async fn start(self, peers: &Peers, backends: &[Backend]) -> Envoy {
        let endpoints: Vec<_> = backends.iter().map(endpoint).collect();
        let protocol = match self.protocol {
            Protocol::Http1 => "{ http_protocol_options: {} }",
            Protocol::Http2 => "{ http2_protocol_options: {} }",
        };
        let configuration = include_str!("envoy.yaml")
            .replace("@ENDPOINTS@", &endpoints.join(", "))
            .replace("@PROTOCOL@", protocol)
            .replace("@RETRY@", self.retry)
            .replace("@POLICY@", self.policy)
            .replace("@ADD@", self.add);
        peers.envoy(&configuration).await
    }
}

fn endpoint(backend: &Backend) -> String {
    let (host, port) = (backend.address.ip(), backend.address.port());
    format!(
        "{{ endpoint: {{ address: {{ socket_address: \
         {{ address: {host}, port_value: {port} }} }} }} }}"
    )
}
