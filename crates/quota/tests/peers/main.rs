//! Programs of others against the quota server.
//!
//! `cargo xtask test` installs the peers and names their place in `TIDEGATE_PEERS`. Where that is
//! not set these tests say that they were left out; where it is, a peer that is missing fails them.

#![allow(clippy::unwrap_used)]

#[path = "../sockets/authority.rs"]
mod authority;
mod etcd;

use std::io::Write as _;
use std::net::SocketAddr;
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

/// Whether anybody has asked for tests with peers; says so if not.
fn asked(what: &str) -> bool {
    let asked = std::env::var_os("TIDEGATE_PEERS").is_some();
    if !asked {
        let line = format!("left out: {what}; `cargo xtask test` installs the peer for it\n");
        // Past the capture of those who run tests, who show nothing of a test that passes.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    asked
}

/// Has a server answer somewhere.
async fn serve(text: &str) -> SocketAddr {
    let config = Config::parse("test.yaml", text).unwrap();
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config, election, Clock::monotonic()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = tidegate::serve(listener, server.router().into_make_service());
    tokio::spawn(async move {
        serve.await.unwrap();
        drop(server);
    });
    address
}

/// The output of a script that is given the address of a server, which has so many above it;
/// nothing if there are no peers.
fn run(script: &str, above: usize) -> Option<String> {
    if !asked(script) {
        return None;
    }
    let place = std::env::var_os("TIDEGATE_PEERS")?;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let mut address = serve(CONFIG).await;
        for n in 0..above {
            let parent = format!("{{ servers: ['http://{address}'], name: below-{n} }}");
            address = serve(&format!(
                "quota:\n  advertise: doorman.example.org:7300\n  doorman: {{ parent: {parent} }}\n"
            ))
            .await;
        }
        address
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script);
    let python = Path::new(&place).join("bin/python");
    let output = Command::new(python).arg(script).arg(address.to_string()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What a client sees of a master, wherever in the tree that is.
fn is_a_master(told: &str) {
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

#[test]
fn a_client_of_doorman_by_grpcio_works_unchanged() {
    let Some(told) = run("doorman.py", 0) else { return };
    is_a_master(&told);
}

#[test]
fn a_client_of_doorman_by_grpcio_sees_no_difference_below_in_the_tree() {
    for above in [1, 2] {
        let Some(told) = run("doorman.py", above) else { return };
        is_a_master(&told);
    }
}
