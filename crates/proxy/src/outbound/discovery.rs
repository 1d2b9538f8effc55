//! Where endpoints come from, and who hears when they do not.
//!
//! A list is there for ever, a name is looked up again and again, a file is read again and again.
//! What goes wrong after the start changes nothing: the endpoints of before stay, and it is said
//! once. At the start there are none of before, so a file that is wrong then is refused.
//!
//! Files are compared by what stands in them. Times of change are too coarse on some systems, and
//! what is put in place by a rename may carry an old one. A thread of its own reads them: a file
//! system that hangs must not hold up a worker.

use super::config::{Endpoints, Resolver, ServiceConfig, Voice};
use super::endpoints::{InvalidEndpoints, parse_all};
use core::time::Duration;
use futures_util::stream;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::client::{Change, Discovery, Endpoint};
use tokio::sync::mpsc;

/// More than this is no list of endpoints: a thousand of them with names of the longest kind are a
/// quarter of it.
const FILE_MAX: u64 = 1 << 20;

/// The discovery of `service`.
pub(super) fn discovery(
    service: &ServiceConfig,
    voice: &Voice,
) -> Result<Discovery, InvalidEndpoints> {
    let about = format!("endpoints of {}", service.name);
    Ok(match &service.endpoints {
        Endpoints::List(list) => Discovery::list(list.clone()),
        Endpoints::Dns { name, period } => {
            let host = name.clone();
            let resolver = Resolver::new(move || {
                let host = host.clone();
                async move { Ok(tokio::net::lookup_host(host).await?.collect()) }
            });
            resolved(resolver, *period, format!("{about}: {name}"), voice)
        }
        Endpoints::Resolver { resolver, period } => {
            resolved(resolver.clone(), *period, about, voice)
        }
        Endpoints::File { path, period } => {
            let file = File { path: path.clone(), datacenters: service.datacenter_names() };
            let (text, first) = file.read()?;
            let (sender, mut changes) = mpsc::unbounded_channel();
            // Whoever would hear it lives in this function.
            let _ = sender.send(Change::Set(first));
            let watch = Watch { file, text: Ok(text), about, voice: voice.clone(), sender };
            watch.start(*period)?;
            Discovery::stream(stream::poll_fn(move |cx| changes.poll_recv(cx)))
        }
    })
}

/// What `resolver` finds; says when it begins to fail, and when it no longer does.
fn resolved(resolver: Resolver, period: Duration, about: String, voice: &Voice) -> Discovery {
    let (state, voice) = (Arc::new(Mutex::new(None)), voice.clone());
    let resolve = move || {
        let (asked, state) = (resolver.ask(), Arc::clone(&state));
        let (about, voice) = (about.clone(), voice.clone());
        let told = async move {
            let found = asked.await;
            let fault = match &found {
                Ok(found) if found.is_empty() => Some("nothing is found".to_owned()),
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            match (&*state, &fault) {
                (before, Some(now)) if before.as_ref() != Some(now) => {
                    voice.say(&format!("{about}: {now}; what was known stays"));
                }
                (Some(_), None) => voice.say(&format!("{about}: found again")),
                _ => {}
            }
            *state = fault;
            found
        };
        Box::pin(told) as _
    };
    Discovery::resolver(resolve, period)
}

/// A file of endpoints.
struct File {
    path: PathBuf,
    datacenters: Vec<String>,
}

impl File {
    /// What stands in it, and what that means.
    fn read(&self) -> Result<(String, Vec<Endpoint>), InvalidEndpoints> {
        let text = text_of(&self.path).map_err(|error| self.unreadable(&error))?;
        let endpoints = self.parse(&text)?;
        Ok((text, endpoints))
    }

    fn parse(&self, text: &str) -> Result<Vec<Endpoint>, InvalidEndpoints> {
        parse_all(text, &self.datacenters).map_err(|error| error.at(self.path.display()))
    }

    fn unreadable(&self, error: &io::Error) -> InvalidEndpoints {
        let right = "a text of one endpoint a line, which we may read";
        InvalidEndpoints::new(error.to_string(), right).at(self.path.display())
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        return Err(io::Error::other(format!("it is longer than {FILE_MAX} bytes")));
    }
    Ok(text)
}

/// Reads a file again and again.
struct Watch {
    file: File,
    /// What was read last, or why it could not be.
    text: Result<String, String>,
    about: String,
    voice: Voice,
    sender: mpsc::UnboundedSender<Change>,
}

impl Watch {
    fn start(mut self, period: Duration) -> Result<(), InvalidEndpoints> {
        let thread = std::thread::Builder::new().name("tidegate-file".to_owned());
        let run = move || {
            // Nobody waits for the thread: it ends at most a period after its balancer.
            while !self.sender.is_closed() {
                std::thread::sleep(period);
                self.look();
            }
        };
        let failed = |error: io::Error| InvalidEndpoints::new(error.to_string(), "more threads");
        thread.spawn(run).map(drop).map_err(failed)
    }

    fn look(&mut self) {
        let text = text_of(&self.file.path).map_err(|error| error.to_string());
        if text == self.text {
            return;
        }
        let found = match &text {
            Ok(text) => self.file.parse(text),
            Err(error) => Err(self.file.unreadable(&io::Error::other(error.clone()))),
        };
        self.text = text;
        match found {
            Ok(endpoints) => {
                self.voice.say(&format!("{}: {} in its file", self.about, endpoints.len()));
                // If the balancer is gone nobody is to hear it.
                let _ = self.sender.send(Change::Set(endpoints));
            }
            Err(error) => {
                self.voice.say(&format!("{}: {error}; what was known stays", self.about));
            }
        }
    }
}
