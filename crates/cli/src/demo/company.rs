//! The services as seen by their parent, and their end.
//!
//! Every service that was started is in one list until it has been waited for. Whoever ends the
//! demo, in whatever way, [dismisses](Company::dismiss) them all; nobody can start one after that.
//! If this process dies without doing so, the services see their input close and end by themselves.

use super::service::{Hello, Side, Status};
use super::{Outcome, service};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All services that there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Company(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    services: Vec<Running>,
    dismissed: bool,
}

#[derive(Debug)]
struct Running {
    side: Side,
    child: Child,
    input: ChildStdin,
}

/// How a service is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) side: Side,
    pub(super) rounds: u64,
    pub(super) cpu: Option<usize>,
    /// Where it goes if it cannot be on that one.
    pub(super) all: &'a [usize],
    /// How much of that CPU is its own, which quotas are parts of.
    pub(super) share: f64,
    pub(super) port: Option<u16>,
}

/// Where a service is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) hello: Hello,
    id: u32,
}

impl Company {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a service and waits until it listens. What it says about itself later goes to `hear`.
    pub(super) fn start(
        &self,
        setup: Setup<'_>,
        hear: impl Fn(Status) + Send + 'static,
    ) -> Outcome<Place> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["demo-service", setup.side.name(), &setup.rounds.to_string()]);
        for (name, value) in [("--cpu", setup.cpu), ("--port", setup.port.map(usize::from))] {
            if let Some(value) = value {
                command.args([name, &value.to_string()]);
            }
        }
        if !setup.all.is_empty() {
            let all: Vec<String> = setup.all.iter().map(usize::to_string).collect();
            command.args(["--all", &all.join(",")]);
        }
        command.args(["--share", &setup.share.to_string()]);
        // A group of its own: Ctrl-C at the terminal is for us, and we see to the rest.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut output = {
            let mut inner = self.lock();
            if inner.dismissed {
                return Err("the demo is ending".into());
            }
            let mut child = command.spawn()?;
            let input = child.stdin.take().ok_or("a service without input")?;
            let output = child.stdout.take().ok_or("a service without output")?;
            inner.services.push(Running { side: setup.side, child, input });
            BufReader::new(output)
        };
        let mut line = String::new();
        output.read_line(&mut line)?;
        let hello: Hello = serde_json::from_str(&line)
            .map_err(|_| format!("the {} service did not start", setup.side.name()))?;
        let id = self.lock().services.last().map_or(0, |running| running.child.id());
        std::thread::Builder::new().name("hearing".to_owned()).spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Ok(status) = serde_json::from_str(&line) {
                    hear(status);
                }
            }
        })?;
        let address = (Ipv4Addr::LOCALHOST, hello.port).into();
        Ok(Place { address, hello, id })
    }

    /// Says a line to all services of a side. One that is gone does not mind.
    pub(super) fn order(&self, side: Side, line: &str) {
        for running in self.lock().services.iter_mut().filter(|running| running.side == side) {
            let _ = writeln!(running.input, "{line}");
        }
    }

    /// Ends one service and waits for its end.
    pub(super) fn end(&self, place: &Place) {
        let mut inner = self.lock();
        let index = inner.services.iter().position(|running| running.child.id() == place.id);
        if let Some(index) = index {
            end(inner.services.swap_remove(index));
        }
    }

    /// Ends all services and waits for their end; no more can be started. Returns how many there
    /// were.
    pub(super) fn dismiss(&self) -> usize {
        let mut inner = self.lock();
        inner.dismissed = true;
        let services = std::mem::take(&mut inner.services);
        let count = services.len();
        services.into_iter().for_each(end);
        count
    }
}

fn end(mut running: Running) {
    // It may be gone already.
    let _ = running.child.kill();
    let _ = running.child.wait();
}

/// How many rounds a request has that takes `seconds` on the CPU of the services.
pub(super) fn rounds_on(cpu: Option<usize>, seconds: f64) -> Outcome<u64> {
    let measure = move || {
        super::cpus::pin(cpu.as_slice());
        service::rounds_in(seconds)
    };
    std::thread::spawn(measure).join().map_err(|_| "the work of a request was not found".into())
}
