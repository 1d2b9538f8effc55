//! Which election this is.
//!
//! Tasks refuse grants of a leader that comes before the one they know, by its **epoch**. So every
//! leader needs a higher one than all before it. A single server elects itself: its epoch is the
//! time in milliseconds, as two starts of one server are further apart than that; and if it has a
//! file to remember the last one, at least one more than that, should the clock have been set back.
//!
//! The file also names the services that were led before. A new leader has to learn what the tasks
//! hold of the one before, and gives out next to nothing meanwhile; where nobody has led, there is
//! nothing to learn. Without a file nobody knows, and every start learns.
//!
//! **When it is wrong.** A clock that was set back, without a file: tasks say which epoch they have
//! seen, and a server that finds a later one than its own refuses them with what to do. They go on
//! with what they have until then, as with no server at all.

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
}

/// An election that was won.
#[derive(Debug, Clone)]
pub struct Election {
    epoch: u64,
    state: Option<PathBuf>,
    /// Services that were led before, as far as is known.
    led: BTreeSet<String>,
}

impl Election {
    /// That of a single server, which starts at `now` and remembers in the file `state`, if there
    /// is one.
    pub fn alone(state: Option<&Path>, now: SystemTime) -> Result<Self, ElectionError> {
        let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        // 64 bits of milliseconds are 500 million years.
        let epoch = u64::try_from(millis).unwrap_or(u64::MAX).max(1);
        let Some(path) = state else {
            return Ok(Self { epoch, state: None, led: BTreeSet::new() });
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
        let election = Self { epoch, state: Some(path.to_owned()), led };
        election.write()?;
        Ok(election)
    }

    /// Its number.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether tasks may hold something of a leader before. Nobody can say so without a file.
    pub(crate) fn was_led(&self, service: &str) -> bool {
        self.state.is_none() || self.led.contains(service)
    }

    /// From now on these were led.
    pub(crate) fn lead<'a>(
        &mut self,
        services: impl Iterator<Item = &'a String>,
    ) -> Result<(), ElectionError> {
        let before = self.led.len();
        self.led.extend(services.cloned());
        if self.led.len() == before { Ok(()) } else { self.write() }
    }

    fn write(&self) -> Result<(), ElectionError> {
        let Some(path) = &self.state else { return Ok(()) };
        let wrong = |source| ElectionError::File { path: path.clone(), source };
        let mut text = format!("{}\n", self.epoch);
        for service in &self.led {
            text.push_str(service);
            text.push('\n');
        }
        // In one step: a file that is half written would be nonsense at the next start.
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).map_err(wrong)?;
        fs::rename(&fresh, path).map_err(wrong)
    }
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

    #[test]
    fn every_start_is_a_later_election_even_if_the_clock_was_set_back() {
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
        first.lead(["search".to_owned(), "ads".to_owned()].iter()).unwrap();
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
