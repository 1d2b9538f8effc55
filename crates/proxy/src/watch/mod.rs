//! What can be seen of the program behind the proxy.
//!
//! The system counts the CPU time of every process and control group. Which one it is that listens
//! behind us the system knows, too: the socket at the program's port has a number
//! (`/proc/net/tcp`), and whoever holds that socket has it among its files. Those processes and all
//! that they have started are the program. They are looked for again every few seconds, as programs
//! are restarted.
//!
//! ```text
//! 127.0.0.1:8080 --> socket 4711 --> processes that have it open --> their children
//! ```
//!
//! **When it is wrong.** A program on another machine, or whose files we may not see (another user,
//! another container's process namespace), is not found: then [`Watch::Nothing`] is what is known,
//! and it takes a name (a process, a control group) to do better. A port that is handed on by
//! something else (a container engine's own proxy) shows that one's CPU, which is too little.

mod find;

pub use find::{InvalidWatch, find};

use crate::pool::Upstream;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tidegate::signals::linux::{Reader, Target};
use tidegate::workplace::Workplace;

/// A program that was restarted is seen again after this long.
const FIND_PERIOD: Duration = Duration::from_secs(2);

/// Whom to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Watch {
    /// Whoever listens at the program's port.
    #[default]
    Auto,
    /// Nobody.
    Nothing,
    /// A process and its children.
    Pid(u32),
    /// A control group by its name.
    Cgroup(PathBuf),
}

impl FromStr for Watch {
    type Err = InvalidWatch;

    fn from_str(text: &str) -> Result<Self, InvalidWatch> {
        let invalid = || InvalidWatch(text.to_owned());
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "nothing" => Ok(Self::Nothing),
            Some(("pid", pid)) => {
                let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or_else(invalid)?;
                Ok(Self::Pid(pid))
            }
            Some(("cgroup", path)) if path.starts_with('/') => Ok(Self::Cgroup(path.into())),
            _ => Err(invalid()),
        }
    }
}

/// The processes of a program, found again and again.
#[derive(Debug, Default)]
struct Found {
    pids: Mutex<Vec<u32>>,
}

impl Found {
    fn set(&self, pids: Vec<u32>) {
        *self.pids.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }

    fn get(&self) -> Vec<u32> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The processes of a program, as one.
#[derive(Debug)]
pub struct Program {
    found: Arc<Found>,
    /// Those that are looked at, and what each had used, and waited for, when last looked at.
    readers: BTreeMap<u32, (Reader, [Duration; 2])>,
    /// What was used, and waited for, while they were looked at.
    total: [Duration; 2],
}

impl Program {
    /// The program that `find` finds, again and again, on a thread of its own.
    fn new(mut find: impl FnMut() -> Vec<u32> + Send + 'static) -> std::io::Result<Self> {
        let found = Arc::new(Found::default());
        found.set(find());
        let weak: Weak<Found> = Arc::downgrade(&found);
        std::thread::Builder::new().name("tidegate-finder".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(FIND_PERIOD);
                let pids = find();
                let Some(found) = weak.upgrade() else { return };
                found.set(pids);
            }
        })?;
        Ok(Self { found, readers: BTreeMap::new(), total: [Duration::ZERO; 2] })
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.found.get()
    }

    /// Looks at those that are there now.
    fn refresh(&mut self) {
        let pids = self.found.get();
        self.readers.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            self.readers.entry(pid).or_insert_with(|| {
                let mut reader = Reader::new(Target::Pid(pid));
                let used = reader.cpu_time().unwrap_or_default();
                let waited = reader.run_delay().unwrap_or_default();
                (reader, [used, waited])
            });
        }
    }
}

impl Workplace for Program {
    fn cpu_time(&mut self) -> Option<Duration> {
        self.refresh();
        let mut known = false;
        for (reader, last) in self.readers.values_mut() {
            let Ok(used) = reader.cpu_time() else { continue };
            known = true;
            self.total[0] += used.saturating_sub(last[0]);
            last[0] = used;
        }
        known.then_some(self.total[0])
    }

    fn waited(&mut self) -> Duration {
        for (reader, last) in self.readers.values_mut() {
            let Ok(waited) = reader.run_delay() else { continue };
            self.total[1] += waited.saturating_sub(last[1]);
            last[1] = waited;
        }
        self.total[1]
    }

    fn cpus(&mut self) -> Option<f64> {
        self.refresh();
        // Where they differ, it is the one who may use the most that shows what there is.
        let cpus = self.readers.values_mut().filter_map(|(reader, _)| reader.cpus().ok());
        cpus.map(|cpus| cpus.cpus).reduce(f64::max)
    }
}

/// What is seen of a program, and where to read its signals if that is one place.
pub(crate) struct Seen {
    pub(crate) place: Box<dyn Workplace>,
    pub(crate) reader: Option<Reader>,
    /// For people.
    pub(crate) words: String,
}

impl Watch {
    /// Begins to look at the program at `upstream`.
    pub(crate) fn start(&self, upstream: &Upstream) -> std::io::Result<Seen> {
        match self {
            Self::Nothing => Ok(unseen("nothing, as it was told".to_owned())),
            Self::Cgroup(path) => {
                let reader = Reader::new(Target::Cgroup(path.clone()));
                let words = format!("the control group {}", path.display());
                Ok(Seen { place: Box::new(reader.clone()), reader: Some(reader), words })
            }
            Self::Pid(pid) => {
                let pid = *pid;
                let program = Program::new(move || find::with_children(&[pid]))?;
                let words = format!("process {pid} and its children");
                Ok(seen(program, words))
            }
            Self::Auto => {
                let place = upstream.clone();
                let program = Program::new(move || find(&place))?;
                let pids = program.pids();
                if pids.is_empty() {
                    let words = format!(
                        "nothing yet: no process that listens at {upstream} can be found here; \
                         requests in flight and how long they take have to do"
                    );
                    return Ok(seen(program, words));
                }
                let list: Vec<String> = pids.iter().map(u32::to_string).collect();
                Ok(seen(program, format!("who listens at {upstream}: process {}", list.join(", "))))
            }
        }
    }
}

fn unseen(words: String) -> Seen {
    Seen { place: Box::new(tidegate::workplace::Unseen), reader: None, words }
}

fn seen(program: Program, words: String) -> Seen {
    let reader = program.pids().first().map(|pid| Reader::new(Target::Pid(*pid)));
    Seen { place: Box::new(program), reader, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_to_watch() {
        for (text, watch) in [
            ("auto", Watch::Auto),
            ("nothing", Watch::Nothing),
            ("pid:17", Watch::Pid(17)),
            ("cgroup:/system.slice/x.service", Watch::Cgroup("/system.slice/x.service".into())),
        ] {
            assert_eq!(text.parse(), Ok(watch), "{text}");
        }
        for text in ["", "pid", "pid:", "pid:0", "pid:x", "cgroup:x", "nobody"] {
            let error = text.parse::<Watch>().unwrap_err().to_string();
            assert!(error.contains("pid:NUMBER"), "{text}: {error}");
        }
    }

    #[test]
    fn a_program_is_whoever_listens_and_what_it_uses_adds_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Upstream::Address(listener.local_addr().unwrap());
        let mut seen = Watch::Auto.start(&upstream).unwrap();
        assert!(seen.words.contains(&std::process::id().to_string()), "{}", seen.words);
        let before = seen.place.cpu_time().unwrap();
        // Until the system has counted some: it does so in hundredths of a second.
        let mut sum = 0_u64;
        while seen.place.cpu_time().unwrap() < before + Duration::from_millis(30) {
            sum = (0..100_000).fold(sum, |sum, n: u64| sum.wrapping_mul(31).wrapping_add(n));
        }
        std::hint::black_box(sum);
        assert!(seen.place.cpus().unwrap() > 0.0);
    }

    #[test]
    fn nobody_is_found_where_nobody_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Upstream::Address(listener.local_addr().unwrap());
        drop(listener);
        let mut seen = Watch::Auto.start(&upstream).unwrap();
        assert!(seen.words.starts_with("nothing yet: no process"), "{}", seen.words);
        assert_eq!(seen.place.cpu_time(), None);
    }
}
