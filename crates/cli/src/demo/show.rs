//! The whole demo, from the first process to the last: what a thread of its own plays, and what
//! others may look at meanwhile.

use super::company::{Company, Place, Setup, rounds_on};
use super::cpus::{self, Places, Seat};
use super::drive::{self, Drive, Tape, Tweaks};
use super::record::Record;
use super::script::{Timing, Tweak};
use super::service::{Side, Status};
use super::{Options, Outcome, lock};
use core::time::Duration;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// A service that gets less than this of its CPU has it not for itself. HTTP itself takes about a
/// twentieth.
const STARVED: f64 = 0.75;

/// How far the demo is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Starting,
    Calibrating,
    /// One side is driven, or both.
    Driving(Option<Side>),
    Over,
}

/// What everybody may look at.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) stage: Stage,
    pub(super) capacity: Option<f64>,
    pub(super) statuses: [Option<Status>; 2],
    /// Where services have pages of their own.
    pub(super) dashboards: [Option<String>; 2],
    /// Where the page with both sides is.
    pub(super) window: Option<String>,
    /// What the user should know besides.
    pub(super) notices: Vec<String>,
}

/// The demo as it was asked for.
#[derive(Debug, Clone)]
pub(super) struct Show {
    pub(super) seed: u64,
    /// CPU time of a request.
    pub(super) work: Duration,
    pub(super) places: Places,
    pub(super) timing: Timing,
    pub(super) port: Option<u16>,
    pub(super) company: Company,
    pub(super) board: Arc<Mutex<Board>>,
    pub(super) records: [Arc<Mutex<Record>>; 2],
    /// To the sides that are driven.
    wanted: Arc<Mutex<Vec<Sender<Tweak>>>>,
}

impl Show {
    pub(super) fn new(options: &Options, places: Places) -> Self {
        Self {
            seed: options.seed,
            work: Duration::from_millis(options.work_ms.into()),
            timing: Timing::new(f64::from(options.seconds), places.at_once),
            places,
            port: options.port,
            company: Company::default(),
            board: Arc::default(),
            records: Default::default(),
            wanted: Arc::default(),
        }
    }

    /// Changes the load of what is driven.
    pub(super) fn tweak(&self, tweak: Tweak) {
        for side in lock(&self.wanted).iter() {
            // One that is done does not mind.
            let _ = side.send(tweak);
        }
    }

    fn notice(&self, words: impl Into<String>) {
        lock(&self.board).notices.push(words.into());
    }

    /// All of it. Services that are left at the end are for whoever dismisses the company.
    pub(super) fn play(&self) -> Outcome {
        // Threads of the load are started from here, and inherit it.
        if !cpus::pin(&self.places.load) {
            self.notice("the system refuses to pin the load: it runs on any CPU");
        }
        let rounds = rounds_on(self.places.services[0], self.work.as_secs_f64())?;
        lock(&self.board).stage = Stage::Calibrating;
        self.calibrate(rounds)?;
        if self.places.at_once { self.play_at_once(rounds) } else { self.play_in_turn(rounds) }?;
        lock(&self.board).stage = Stage::Over;
        Ok(())
    }

    /// Finds the capacity by bare services: one, or one for each side if both are driven at once.
    fn calibrate(&self, rounds: u64) -> Outcome {
        let count = if self.places.at_once { 2 } else { 1 };
        let mut places = Vec::new();
        for cpu in &self.places.services[..count] {
            let all = &self.places.all;
            let setup = Setup { side: Side::Bare, rounds, cpu: *cpu, all, share: 1.0, port: None };
            places.push(self.company.start(setup, |_| ())?);
        }
        let addresses: Vec<_> = places.iter().map(|place| place.address).collect();
        let capacity = drive::capacity(&addresses, &self.timing, self.seed)?;
        for place in &places {
            self.company.end(place);
        }
        lock(&self.board).capacity = Some(capacity);
        if capacity * self.work.as_secs_f64() < STARVED * self.places.share() {
            self.notice(
                "others use the CPU of the services: what was measured is of what is left of it",
            );
        }
        Ok(())
    }

    fn start(&self, side: Side, rounds: u64) -> Outcome<Place> {
        let cpu = self.places.services[side.index()];
        // The protected one is the one to look at from outside; the other takes the next port.
        let port = self.port.map(|port| match side {
            Side::Protected => port,
            Side::Bare => port.saturating_add(1),
        });
        let board = Arc::clone(&self.board);
        let hear = move |status| lock(&board).statuses[side.index()] = Some(status);
        let Places { all, .. } = &self.places;
        let setup = Setup { side, rounds, cpu, all, share: self.places.share(), port };
        let place = self.company.start(setup, hear)?;
        let mut board = lock(&self.board);
        board.dashboards[side.index()].clone_from(&place.hello.dashboard);
        if let Some(port) = port.filter(|_| place.hello.port_taken) {
            let words =
                format!("port {port} is taken: {} is on {}", side.name(), place.address.port());
            board.notices.push(words);
        }
        let runs = match place.hello.seat {
            Seat::Own => None,
            Seat::Any => Some("on any CPU"),
            Seat::Inherited => Some("beside the load, which takes from it"),
        };
        if let Some(runs) = runs {
            let name = side.name();
            board.notices.push(format!("the system refuses to pin {name}: it runs {runs}"));
        }
        Ok(place)
    }

    fn drive(&self, side: Side, place: &Place, tweaks: Tweaks) -> Drive {
        let (tell, wanted) = channel();
        lock(&self.wanted).push(tell);
        Drive {
            address: place.address,
            capacity: lock(&self.board).capacity.unwrap_or_default(),
            seed: self.seed,
            timing: self.timing,
            record: Arc::clone(&self.records[side.index()]),
            wanted,
            tweaks,
        }
    }

    fn play_in_turn(&self, rounds: u64) -> Outcome {
        let tape: Arc<Mutex<Tape>> = Arc::default();
        for side in Side::ALL {
            let place = self.start(side, rounds)?;
            let tweaks = match side {
                Side::Bare => Tweaks::Record(Arc::clone(&tape)),
                Side::Protected => Tweaks::Replay(lock(&tape).clone()),
            };
            let drive = self.drive(side, &place, tweaks);
            lock(&self.board).stage = Stage::Driving(Some(side));
            let outcome = drive.run();
            lock(&self.wanted).clear();
            self.company.end(&place);
            outcome?;
        }
        Ok(())
    }

    fn play_at_once(&self, rounds: u64) -> Outcome {
        let mut drives = Vec::new();
        for side in Side::ALL {
            let place = self.start(side, rounds)?;
            drives.push(self.drive(side, &place, Tweaks::Record(Arc::default())));
        }
        lock(&self.board).stage = Stage::Driving(None);
        let threads: Vec<_> =
            drives.into_iter().map(|drive| std::thread::spawn(move || drive.run())).collect();
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        for outcome in outcomes {
            outcome.map_err(|_| "a side could not be driven")??;
        }
        Ok(())
    }
}
