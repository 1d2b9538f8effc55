//! Proxies in front of a server that cannot protect itself.
//!
//! The server is Python: asyncio, one request at a time, alone on one core. The proxies share the
//! other one with the load.
//!
//! | contender | is |
//! |---|---|
//! | `nothing` | the server alone |
//! | `envoy-adaptive` | Envoy's `adaptive_concurrency`, a gradient of latencies, as its docs have it |
//! | `envoy-admission` | Envoy's `admission_control`, by success rate, with its defaults |
//! | `haproxy-queue` | `HAProxy` with four requests at once and a queue of 100 ms, set by hand |
//! | `tidegate` | the inbound role with nothing set |

use super::server::Server;
use crate::Outcome;
use crate::peers::{Peer, Running, Told};
use clap::ValueEnum;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

const PROGRAM: &str = include_str!("program.py");

/// What stands in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Front {
    Nothing,
    EnvoyAdaptive,
    EnvoyAdmission,
    HaproxyQueue,
    Tidegate,
}

/// What has come of starting one.
pub(crate) enum Started {
    Running(Running),
    /// There is nothing to start.
    Needless,
    /// It is not installed.
    NotThere,
}

/// How many rounds of the Python server's work take so many milliseconds, about.
pub(crate) fn rounds_in(millis: f64) -> Outcome<u64> {
    let mut command = Command::new("python3");
    let output = command.args(["-c", PROGRAM, "rounds", &millis.to_string()]).output();
    let output = output.map_err(|error| format!("python3 cannot be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// The server of Python, on `cpu`.
pub(crate) fn server(rounds: u64, cpu: Option<usize>) -> Outcome<Server> {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.unwrap_or(0).to_string());
    command.args(["python3", "-c", PROGRAM, "serve", &rounds.to_string()]);
    command.stderr(Stdio::null());
    Server::spawn(command)
}

impl Front {
    pub(crate) const ALL: [Self; 5] = [
        Self::Nothing,
        Self::EnvoyAdaptive,
        Self::EnvoyAdmission,
        Self::HaproxyQueue,
        Self::Tidegate,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::EnvoyAdaptive => "envoy-adaptive",
            Self::EnvoyAdmission => "envoy-admission",
            Self::HaproxyQueue => "haproxy-queue",
            Self::Tidegate => "tidegate",
        }
    }

    const fn peer(self) -> Option<Peer> {
        match self {
            Self::Nothing => None,
            Self::EnvoyAdaptive | Self::EnvoyAdmission => Some(Peer::Envoy),
            Self::HaproxyQueue => Some(Peer::Haproxy),
            Self::Tidegate => Some(Peer::Tidegate),
        }
    }

    /// In front of `upstream`, on `cpu`.
    pub(crate) fn start(self, upstream: SocketAddr, cpu: Option<usize>) -> Outcome<Started> {
        let Some(peer) = self.peer() else { return Ok(Started::Needless) };
        let Some(program) = peer.found() else { return Ok(Started::NotThere) };
        let running = Running::start(peer, &program, cpu, |address, _| match self {
            Self::EnvoyAdaptive => Told::File(envoy(ADAPTIVE, address, upstream)),
            Self::EnvoyAdmission => Told::File(envoy(ADMISSION, address, upstream)),
            Self::HaproxyQueue => Told::File(haproxy(address, upstream)),
            Self::Nothing | Self::Tidegate => Told::Arguments(vec![
                "proxy-server".to_owned(),
                address.to_string(),
                upstream.to_string(),
                "--trust".to_owned(),
            ]),
        });
        Ok(Started::Running(running?))
    }
}

fn haproxy(address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  timeout queue 100ms
  http-reuse always
frontend front
  bind {address}
  default_backend behind
backend behind
  server one {upstream} maxconn 4
"
    )
}

const TYPES: &str = "type.googleapis.com/envoy.extensions.filters";

const ADAPTIVE: &str = "adaptive_concurrency
            typed_config:
              \"@type\": TYPES.http.adaptive_concurrency.v3.AdaptiveConcurrency
              gradient_controller_config:
                sample_aggregate_percentile: { value: 90 }
                concurrency_limit_params: { concurrency_update_interval: 0.1s }
                min_rtt_calc_params:
                  jitter: { value: 10 }
                  interval: 60s
                  request_count: 50
              enabled: { default_value: true, runtime_key: bench.on }";

const ADMISSION: &str = "admission_control
            typed_config:
              \"@type\": TYPES.http.admission_control.v3.AdmissionControl
              enabled: { default_value: true, runtime_key: bench.on }
              sampling_window: 30s
              success_criteria: { http_criteria: { } }";

fn envoy(filter: &str, address: SocketAddr, upstream: SocketAddr) -> String {
    let filter = filter.replace("TYPES", TYPES);
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
          codec_type: HTTP1
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: behind }}
          http_filters:
          - name: {filter}
          - name: router
            typed_config:
              \"@type\": {TYPES}.http.router.v3.Router
  clusters:
  - name: behind
    type: STATIC
    circuit_breakers:
      thresholds:
      - {{ max_connections: 100000, max_requests: 100000, max_pending_requests: 100000 }}
    load_assignment:
      cluster_name: behind
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: 127.0.0.1, port_value: {behind} }} }}
",
        port = address.port(),
        behind = upstream.port(),
    )
}
