//! The demo in a browser: both sides, side by side.
//!
//! The protected service has a page of its own, as every service behind tidegate may have, and
//! knows its signals, its customers and why it refuses; it is asked once a second. The bare one
//! knows nothing of itself: what is shown of it is what its callers have seen.
//!
//! The page is served by the process of the demo, so that it is there from the first moment to the
//! last, whichever side runs. A service that is busy answers late, and its page with it: it is then
//! shown as it was.

use super::lock;
use super::record::{BIN, Bin, Record, WELL};
use super::service::Side;
use super::show::{Board, Show, Stage};
use crate::remote::Remote;
use std::collections::HashSet;
use std::os::unix::process::CommandExt as _;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::admin::api::{Event, Explanation, Kind, Level, Snapshot};
use tidegate::admin::{Admin, AdminError, Page, Source};
use tidegate_core::Criticality;

/// Bins in a second.
const SECOND: usize = (1_000 / BIN.as_millis()) as usize;

/// Serves it on any free port of loopback, for as long as what is returned is kept.
pub(super) fn open(show: &Show) -> Result<Page, AdminError> {
    let protected =
        Protected { board: Arc::clone(&show.board), last: absent(), seen: HashSet::new() };
    let bare = Bare {
        board: Arc::clone(&show.board),
        record: Arc::clone(&show.records[Side::Bare.index()]),
        state: (String::new(), 0),
    };
    Admin::empty().source("protected", protected).source("bare", bare).spawn("127.0.0.1:0")
}

/// Opens `url` in the user's browser where there is one; whether it was tried.
pub(super) fn browse(url: &str) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let opener = if cfg!(target_os = "macos") {
        "open"
    } else if set("DISPLAY") || set("WAYLAND_DISPLAY") {
        "xdg-open"
    } else {
        return false;
    };
    let mut command = std::process::Command::new(opener);
    let null = std::process::Stdio::null;
    // A browser that it starts is not to end with the demo.
    command.process_group(0).arg(url).stdin(null()).stdout(null()).stderr(null());
    let Ok(mut child) = command.spawn() else { return false };
    // It ends as soon as it has told the browser; until then somebody has to wait for it.
    std::thread::spawn(move || child.wait());
    true
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Nothing was ever heard.
fn absent() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.state.kind = Kind::Gone;
    snapshot
}

/// The service behind tidegate, by its own page.
struct Protected {
    board: Arc<Mutex<Board>>,
    /// What it said last.
    last: Snapshot,
    /// The decisions that are known here.
    seen: HashSet<String>,
}

impl Protected {
    fn remote(&self) -> Option<Remote> {
        let url = lock(&self.board).dashboards[Side::Protected.index()].clone();
        Remote::parse(&url?, None).ok()
    }

    fn ask(&mut self) -> Option<(Snapshot, Vec<Event>)> {
        let remote = self.remote()?;
        let read = |path: &str| remote.get(path).ok().filter(|(status, _)| *status == 200);
        let snapshot = serde_json::from_str(&read("/api/snapshot")?.1).ok()?;
        let events: Vec<Event> = serde_json::from_str(&read("/api/events")?.1).ok()?;
        let ids = events.iter().map(|event| event.id.clone()).collect();
        // What it does not tell any more is not told again.
        let known = std::mem::replace(&mut self.seen, ids);
        let new = events.into_iter().filter(|event| !known.contains(&event.id)).collect();
        Some((snapshot, new))
    }
}

impl Source for Protected {
    fn look(&mut self) -> (Snapshot, Vec<Event>) {
        let (snapshot, events) = match self.ask() {
            Some(found) => found,
            None => (self.absent(), Vec::new()),
        };
        self.last = snapshot.clone();
        (snapshot, events)
    }

    fn explain(&self, decision: &str) -> Option<Explanation> {
        if !decision.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            return None;
        }
        let (status, text) = self.remote()?.get(&format!("/api/explain/{decision}")).ok()?;
        (status == 200).then(|| serde_json::from_str(&text).ok())?
    }
}

impl Protected {
    /// Nobody answers: it has not begun, or is over, or is too busy just now.
    fn absent(&self) -> Snapshot {
        let sentence = match lock(&self.board).stage {
            Stage::Starting | Stage::Calibrating => "It is being found out what the service can do",
            Stage::Driving(Some(Side::Bare)) => "Its turn comes after the bare side's",
            Stage::Driving(_) if self.last.state.kind != Kind::Gone => return self.last.clone(),
            Stage::Driving(_) => "It is about to begin",
            Stage::Over => "It is over",
        };
        let mut snapshot = Snapshot::default();
        "demo".clone_into(&mut snapshot.service);
        snapshot.at_ms = now_ms();
        snapshot.state.kind = Kind::Gone;
        sentence.clone_into(&mut snapshot.state.sentence);
        let since = &self.last.state;
        snapshot.state.since_ms =
            if since.sentence == sentence { since.since_ms } else { snapshot.at_ms };
        snapshot
    }
}

/// The bare service, by what its callers have seen.
struct Bare {
    board: Arc<Mutex<Board>>,
    record: Arc<Mutex<Record>>,
    /// What it was said to do, and since when.
    state: (String, u64),
}

impl Source for Bare {
    fn look(&mut self) -> (Snapshot, Vec<Event>) {
        let (stage, capacity) = {
            let board = lock(&self.board);
            (board.stage, board.capacity)
        };
        let mut snapshot = match stage {
            Stage::Driving(None | Some(Side::Bare)) => seen(&lock(&self.record).bins),
            _ => Snapshot::default(),
        };
        let words = match stage {
            Stage::Starting | Stage::Calibrating => "It is being found out what the service can do",
            Stage::Driving(Some(Side::Protected)) => "Its turn is over",
            Stage::Over => "It is over",
            Stage::Driving(_) => "",
        };
        if !words.is_empty() {
            snapshot.state.kind = Kind::Gone;
            words.clone_into(&mut snapshot.state.sentence);
        }
        "demo".clone_into(&mut snapshot.service);
        "There are no quotas without tidegate".clone_into(&mut snapshot.quota.sentence);
        snapshot.at_ms = now_ms();
        snapshot.work.capacity = capacity;
        // What it does is told by its kind; the numbers in the sentence change all the time.
        let kind = format!("{:?} {words}", snapshot.state.kind);
        if self.state.0 != kind {
            self.state = (kind, snapshot.at_ms);
        }
        snapshot.state.since_ms = self.state.1;
        (snapshot, Vec::new())
    }
}

/// The last whole second.
fn seen(bins: &[Bin]) -> Snapshot {
    // The last bin may go on.
    let last = bins.len().saturating_sub(1);
    let second = &bins[last.saturating_sub(SECOND)..last];
    let sum = |of: &dyn Fn(&Bin) -> u64| second.iter().map(of).sum::<u64>() as f64;
    let (offered, good, ended) = (
        sum(&|bin| bin.offered),
        sum(&|bin| bin.good),
        sum(&|bin| bin.levels.iter().map(|(_, ended)| ended).sum()),
    );
    let attempts = sum(&|bin| bin.attempts);
    let mut snapshot = Snapshot::default();
    snapshot.work.offered = offered;
    snapshot.work.admitted = offered;
    snapshot.work.good = good;
    snapshot.work.failed = ended - good;
    snapshot.latency.p99_ms = second.iter().filter_map(|bin| bin.p99_ms).reduce(f64::max);
    snapshot.retries.attempts = [offered, (attempts - offered).max(0.0), 0.0];
    // Those that go on have had some of theirs.
    snapshot.retries.amplification = (ended > 0.0).then(|| (attempts / ended).max(1.0));
    for criticality in Criticality::ALL.into_iter().rev() {
        let index = criticality.index();
        let mut level = Level::default();
        criticality.name().clone_into(&mut level.criticality);
        level.admitted = sum(&|bin| bin.levels[index].1);
        level.good = sum(&|bin| bin.levels[index].0);
        snapshot.levels.push(level);
    }
    let well = good >= WELL * ended;
    if ended == 0.0 {
        snapshot.state.kind = Kind::Starting;
        "Nothing was answered yet".clone_into(&mut snapshot.state.sentence);
        return snapshot;
    }
    snapshot.state.kind = if well { Kind::Healthy } else { Kind::Overrun };
    snapshot.state.sentence = if well {
        "Takes whatever comes, and answers in time".to_owned()
    } else {
        let share = 100.0 * good / ended.max(1.0);
        format!("Takes whatever comes: of what callers wait for, {share:.0} % is answered in time")
    };
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bare_side_is_shown_as_its_callers_see_it() {
        // A calm second, a second in which a tenth is good, and a bin that goes on.
        let bins: Vec<_> = [(0, 40, 40); 4].into_iter().chain([(2, 400, 40); 5]).collect();
        let record = Record::drawn(&bins);
        let calm = seen(&record.bins[..5]);
        assert_eq!((calm.work.offered, calm.work.good, calm.work.failed), (160.0, 160.0, 0.0));
        assert_eq!(calm.state.kind, Kind::Healthy);
        let surge = seen(&record.bins);
        assert_eq!((surge.work.offered, surge.work.good), (1_600.0, 160.0));
        assert_eq!(surge.state.kind, Kind::Overrun);
        assert!(surge.state.sentence.contains("10 %"), "{}", surge.state.sentence);
        assert_eq!(surge.levels[0].criticality, "CRITICAL_PLUS");
        assert_eq!((surge.levels[0].admitted, surge.levels[0].good), (400.0, 40.0));
        assert!(surge.retries.amplification.is_some_and(|times| times > 1.5));
        assert_eq!(seen(&[]).work.offered, 0.0);
    }

    #[test]
    fn a_side_says_why_there_is_nothing_to_see() {
        let board: Arc<Mutex<Board>> = Arc::default();
        let mut bare =
            Bare { board: Arc::clone(&board), record: Arc::default(), state: (String::new(), 0) };
        let mut protected =
            Protected { board: Arc::clone(&board), last: absent(), seen: HashSet::new() };
        for (stage, of_bare, of_protected) in [
            (Stage::Calibrating, "found out", "found out"),
            (Stage::Driving(Some(Side::Bare)), "Nothing was", "after the bare"),
            (Stage::Driving(Some(Side::Protected)), "turn is over", "about to begin"),
            (Stage::Over, "It is over", "It is over"),
        ] {
            lock(&board).stage = stage;
            let sentence = bare.look().0.state.sentence;
            assert!(sentence.contains(of_bare), "{stage:?}: {sentence}");
            let sentence = protected.look().0.state.sentence;
            assert!(sentence.contains(of_protected), "{stage:?}: {sentence}");
        }
    }
}
