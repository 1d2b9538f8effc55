//! The proxy in front of a program that is not Rust.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidegate::Criticality;
use tidegate_load::{Draft, Report, Run};
use tidegate_proxy::{Config, Proxy, Upstream, Watch};

/// A program of Python that burns five milliseconds a request, until it is dropped.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    /// Nothing, and a line that says so, if nobody has asked for tests with peers.
    fn start() -> Option<Self> {
        let Some(place) = std::env::var_os("TIDEGATE_PEERS") else {
            let line = "left out: the proxy in front of Python; `cargo xtask test` runs it\n";
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/program.py");
        let mut command = Command::new(Path::new(&place).join("bin/python"));
        command.arg(script).arg("5").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = format!("127.0.0.1:{}", line.trim()).parse().unwrap();
        Some(Self { child, address })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Drives `address` by a plan: what `tidegate load --plan` takes.
fn drive(address: SocketAddr, plan: &str) -> Report {
    let text = format!("target: http://{address}/\n{plan}");
    let plan = Draft::parse("plan.yaml", &text).unwrap().resolve(false, 7).unwrap();
    Run::start(plan).unwrap().finish(|_| {}).unwrap()
}

/// Five times what the program can do, for some seconds; and what became of whom.
fn surge(watch: Watch) {
    let Some(program) = Program::start() else { return };
    let most = drive(program.address, "rate: max\nduration: 2s\nconnections: 4\n");
    let capacity = most.total.ok as f64 / 2.0;
    let mut config =
        Config::new("127.0.0.1:0".parse().unwrap(), Upstream::Address(program.address));
    config.workers = NonZeroUsize::new(1);
    config.dark = false;
    config.ceiling = Criticality::CriticalPlus;
    config.watch = watch;
    let proxy = Proxy::start(config).unwrap();
    // It learns what is usual.
    drive(proxy.address(), &format!("rate: {}\nduration: 4s\n", (capacity * 0.5) as u64));
    let plan = format!(
        "rate: {}\nduration: 6s\ndeadline: 1s\ncriticality: {{ CRITICAL_PLUS: 1, SHEDDABLE: 9 }}\n",
        (capacity * 5.0) as u64
    );
    let report = drive(proxy.address(), &plan);
    let success = |level: Criticality| report.criticality[level.name()].success;
    let (plus, sheddable) = (success(Criticality::CriticalPlus), success(Criticality::Sheddable));
    let goodput = report.total.ok as f64 / 6.0 / capacity;
    // Half of what it can do is asked for by what matters most: it fits. The machine may be busy
    // with other tests, so that what it can do is not what it could before.
    assert!(plus > 0.8, "CRITICAL_PLUS {plus:.2}, SHEDDABLE {sheddable:.2}, goodput {goodput:.2}");
    assert!(sheddable < 0.5 * plus, "CRITICAL_PLUS {plus:.2}, SHEDDABLE {sheddable:.2}");
    assert!(goodput > 0.5, "goodput {goodput:.2}");
    proxy.life().stop();
    proxy.life().hasten();
    proxy.life().hasten();
    proxy.join().unwrap();
}

#[test]
fn a_surge_on_python_is_shed_by_criticality() {
    surge(Watch::Auto);
}

#[test]
fn a_surge_on_a_program_that_cannot_be_seen_is_shed_as_well() {
    surge(Watch::Nothing);
}
