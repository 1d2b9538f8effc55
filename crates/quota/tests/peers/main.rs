//! Programs of others against the quota server.
//!
//! `cargo xtask test` installs the peers and names their place in `TIDEGATE_PEERS`. Where that is
//! not set these tests say that they were left out; where it is, a peer that is missing fails them.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;
use tidegate::clock::Clock;
use tidegate_quota::{Config, Election, Server};
use tokio::net::TcpListener;

const CONFIG: &str = "\
quota:
  advertise: doorman.example.org:7300
  doorman:
    resources:
    - identifier_glob: '*'
      capacity: 120
      safe_capacity: 7
      algorithm:
        kind: FAIR_SHARE
        lease_length: 60
        refresh_interval: 5
        learning_mode_duration: -1
";

/// The output of a script that is given the address of a server; nothing if there are no peers.
fn run(script: &str) -> Option<String> {
    let Some(place) = std::env::var_os("TIDEGATE_PEERS") else {
        let line = format!("left out: {script}; `cargo xtask test` installs the peer for it\n");
        // Past the capture of those who run tests, who show nothing of a test that passes.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let config = Config::parse("test.yaml", CONFIG).unwrap();
        let election = Election::alone(None, SystemTime::now()).unwrap();
        let server = Server::start(&config, election, Clock::monotonic()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = tidegate::serve(listener, server.router().into_make_service());
        tokio::spawn(async move { serve.await.unwrap() });
        address
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script);
    let python = Path::new(&place).join("bin/python");
    let output = Command::new(python).arg(script).arg(address.to_string()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_client_of_doorman_by_grpcio_works_unchanged() {
    let Some(told) = run("doorman.py") else { return };
    assert_eq!(
        told,
        "master True doorman.example.org:7300\n\
         shares 60.0 50.0 10.0\n\
         lease True 5 7.0\n\
         same True\n\
         urgent 0.0\n\
         nan 0.0\n\
         released 110.0\n\
         refused INVALID_ARGUMENT\n\
         server 120.0 3 60 5\n"
    );
}
