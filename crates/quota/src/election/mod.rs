//! Which election this is, and whether it is won.
//!
//! Tasks refuse grants of a leader that comes before the one they know, by its **epoch**. So every
//! leader needs a higher one than all before it. A single server elects itself: its epoch is the
//! time in milliseconds, as two starts of one server are further apart than that; and if it has a
//! file to remember the last one, at least one more than that, should the clock have been set back.
//!
//! Of several servers etcd has one elected ([`Candidate`]). Its epoch is the revision at which its
//! key came to be, on top of the time in milliseconds at which the first of all was elected there:
//! that stays the same for ever, and makes epochs of both kinds comparable. A fleet can change from
//! one kind to the other, or to an etcd that was set up anew, and its epochs go on rising, as no
//! etcd counts a thousand changes a second for years.
//!
//! The file, and in its place a key in etcd, also names the services that were led before. A new
//! leader has to learn what the tasks hold of the one before, and gives out next to nothing
//! meanwhile; where nobody has led, there is nothing to learn. Without a file nobody knows, and
//! every start of a single server learns.
//!
//! | question | module |
//! |---|---|
//! | who leads, and until when | `tidegate_core::election` |
//! | what is asked of etcd | `office` |
//! | who asks, and what follows | `candidate` |
//! | what may a leader do when its time is up | `fence` |
//! | what are the limits, if they are in etcd | `limits` |
//!
//! **When it is wrong.** A clock that was set back, without a file: tasks say which epoch they have
//! seen, and a server that finds a later one than its own refuses them with what to do. They go on
//! with what they have until then, as with no server at all.

mod candidate;
pub(crate) mod fence;
mod limits;
mod office;

pub use candidate::{Candidate, Change};

use crate::etcd::EtcdError;
use office::Office;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// Why there is no election.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The file has something else in it.
    #[error(
        "{path} holds `{found}`, and should begin with the number of the last election, or not be"
    )]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What it begins with.
        found: String,
    },
    /// The file cannot be used.
    #[error("{path} cannot be read and written")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// etcd does not remember it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Somebody else leads by now.
    #[error("somebody else leads by now")]
    Over,
}

/// An election that was won.
#[derive(Debug, Clone)]
pub struct Election {
    epoch: u64,
    memory: Memory,
    /// Services that were led before, as far as is known.
    led: BTreeSet<String>,
}

/// Where it is written down what was led.
#[derive(Debug, Clone)]
enum Memory {
    None,
    File(PathBuf),
    Etcd(Office),
}

impl Election {
    /// That of a single server, which starts at `now` and remembers in the file `state`, if there
    /// is one.
    pub fn alone(state: Option<&Path>, now: SystemTime) -> Result<Self, ElectionError> {
        let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        // 64 bits of milliseconds are 500 million years.
        let epoch = u64::try_from(millis).unwrap_or(u64::MAX).max(1);
        let Some(path) = state else {
            return Ok(Self { epoch, memory: Memory::None, led: BTreeSet::new() });
        };
        let (last, led) = match fs::read_to_string(path) {
            Ok(text) => read(&text).ok_or_else(|| ElectionError::Nonsense {
                path: path.to_owned(),
                found: text.chars().take(40).collect(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, BTreeSet::new()),
            Err(source) => return Err(ElectionError::File { path: path.to_owned(), source }),
        };
        let epoch = epoch.max(last.saturating_add(1));
        let election = Self { epoch, memory: Memory::File(path.to_owned()), led };
        write(path, election.epoch, &election.led)?;
        Ok(election)
    }

    /// That of a server which was elected to `office`, where `led` were led before.
    fn of(office: Office, epoch: u64, led: BTreeSet<String>) -> Self {
        Self { epoch, memory: Memory::Etcd(office), led }
    }

    /// Its number.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it was one of several servers that won it.
    pub(crate) const fn is_by_etcd(&self) -> bool {
        matches!(self.memory, Memory::Etcd(_))
    }

    /// Whether tasks may hold something of a leader before. Nobody can say so without a file.
    pub(crate) fn was_led(&self, service: &str) -> bool {
        matches!(self.memory, Memory::None) || self.led.contains(service)
    }

    /// From now on these were led; nothing may be handed out before that is written down.
    pub(crate) async fn lead<'a>(
        &mut self,
        services: impl Iterator<Item = &'a String>,
    ) -> Result<(), ElectionError> {
        let Memory::Etcd(office) = &self.memory else { return self.lead_here(services) };
        if let Some(led) = self.with(services) {
            office.remember(&led).await?;
            self.led = led;
        }
        Ok(())
    }

    /// The same for a single server, which need not wait for anybody.
    pub(crate) fn lead_here<'a>(
        &mut self,
        services: impl Iterator<Item = &'a String>,
    ) -> Result<(), ElectionError> {
        if let Some(led) = self.with(services) {
            if let Memory::File(path) = &self.memory {
                write(path, self.epoch, &led)?;
            }
            self.led = led;
        }
        Ok(())
    }

    /// All that were led, if these are more.
    fn with<'a>(&self, services: impl Iterator<Item = &'a String>) -> Option<BTreeSet<String>> {
        let mut led = self.led.clone();
        led.extend(services.cloned());
        (led.len() > self.led.len()).then_some(led)
    }
}

fn write(path: &Path, epoch: u64, led: &BTreeSet<String>) -> Result<(), ElectionError> {
    let wrong = |source| ElectionError::File { path: path.to_owned(), source };
    let mut text = format!("{epoch}\n");
    for service in led {
        text.push_str(service);
        text.push('\n');
    }
    // In one step: a file that is half written would be nonsense at the next start.
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).map_err(wrong)?;
    fs::rename(&fresh, path).map_err(wrong)
}

fn read(text: &str) -> Option<(u64, BTreeSet<String>)> {
    let mut lines = text.lines();
    let epoch = lines.next()?.trim().parse().ok()?;
    Some((epoch, lines.map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[tokio::test]
    async fn every_start_is_a_later_election_even_if_the_clock_was_set_back() {
        let epoch = |state: Option<&Path>, now| Election::alone(state, now).unwrap().epoch();
        assert_eq!(epoch(None, at(7_000)), 7_000);
        assert_eq!(epoch(None, UNIX_EPOCH - Duration::from_secs(1)), 1);
        let folder = std::env::temp_dir().join(format!("tidegate-epoch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let state = folder.join("epoch");
        assert_eq!(epoch(Some(&state), at(7_000)), 7_000);
        assert_eq!(epoch(Some(&state), at(6_000)), 7_001);
        assert_eq!(epoch(Some(&state), at(9_000)), 9_000);

        // Who led what is remembered; without a file anyone may have.
        let mut first = Election::alone(Some(&state), at(9_000)).unwrap();
        assert!(!first.was_led("search"));
        first.lead(["search".to_owned(), "ads".to_owned()].iter()).await.unwrap();
        let second = Election::alone(Some(&state), at(10_000)).unwrap();
        assert!(second.was_led("search") && second.was_led("ads") && !second.was_led("mail"));
        assert!(Election::alone(None, at(10_000)).unwrap().was_led("mail"));

        fs::write(&state, "lots\n").unwrap();
        let complaint = Election::alone(Some(&state), at(9_000)).unwrap_err().to_string();
        assert!(complaint.contains("holds `lots\n`"), "{complaint}");
        let nowhere = folder.join("none/epoch");
        let complaint = Election::alone(Some(&nowhere), at(9_000)).unwrap_err().to_string();
        assert!(complaint.contains("cannot be"), "{complaint}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
