//! The demo in a terminal: both sides live, and keys that change what happens.
//!
//! [`view`] turns what was measured so far into figures, [`draw`] puts them onto the screen. This
//! module owns the terminal: it is given back whatever happens, also if drawing panics.

mod draw;
mod view;

use super::script::Tweak;
use super::service::Side;
use super::show::{Show, Stage};
use super::{End, Outcome, lock, window};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use view::View;

/// What the picture needs: what terminals have had for fifty years.
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;

/// How often the picture is drawn: twice for each point of the curve.
const FRAME: Duration = Duration::from_millis(125);
/// How often the services are asked how they are.
const STATUS: Duration = Duration::from_secs(1);

/// A key makes the load a quarter more, or takes that off again.
const STEP: f64 = 1.25;
/// Twice and a half of each of these is as far as it goes: 10x then is 25x, or 4x.
const FACTOR_MAX: f64 = 2.5;

/// Whether the picture can be shown; if not, why, unless that is what was asked for.
pub(super) fn wanted(lines: bool) -> Result<(), Option<String>> {
    if lines {
        return Err(None);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Some("no terminal: lines instead of the live view".to_owned()));
    }
    if std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
        return Err(Some("a terminal that only takes lines: no live view".to_owned()));
    }
    match terminal::size() {
        Ok((columns, rows)) if columns < COLUMNS || rows < ROWS => Err(Some(format!(
            "the terminal has {columns}x{rows}, the live view needs {COLUMNS}x{ROWS}: lines instead"
        ))),
        Ok(_) => Ok(()),
        Err(error) => Err(Some(format!("the terminal does not say how large it is: {error}"))),
    }
}

/// Shows the demo until the player is done, or somebody ends it.
pub(super) fn watch(
    show: &Show,
    player: &JoinHandle<Outcome>,
    interrupted: &AtomicBool,
) -> Outcome<End> {
    let mut terminal = ratatui::try_init()?;
    let outcome = Desk::new(show).run(&mut terminal, player, interrupted);
    first(outcome, ratatui::try_restore())
}

/// What went wrong first is what there is to tell: a terminal that cannot be drawn on can mostly
/// not be restored either.
fn first<T>(outcome: Outcome<T>, restored: io::Result<()>) -> Outcome<T> {
    let outcome = outcome?;
    restored?;
    Ok(outcome)
}

/// Where the keys are.
struct Desk<'a> {
    show: &'a Show,
    tweak: Tweak,
    /// Said since then, for some seconds.
    notice: Option<(Instant, String)>,
    asked: Instant,
    /// Opens a page in the user's browser; whether that was tried.
    browse: fn(&str) -> bool,
}

/// How long a notice stays.
const NOTICE: Duration = Duration::from_secs(5);

impl<'a> Desk<'a> {
    fn new(show: &'a Show) -> Self {
        let (tweak, asked) = (Tweak::NONE, Instant::now());
        Self { show, tweak, notice: None, asked, browse: window::browse }
    }

    fn run(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        player: &JoinHandle<Outcome>,
        interrupted: &AtomicBool,
    ) -> Outcome<End> {
        loop {
            if interrupted.load(Ordering::Acquire) {
                return Ok(End::Interrupted);
            }
            if player.is_finished() {
                return Ok(End::Whole);
            }
            let view = self.view();
            terminal.draw(|frame| draw::draw(frame, &view))?;
            self.ask();
            if event::poll(FRAME)?
                && let Event::Key(key) = event::read()?
                && let Some(end) = self.press(key)
            {
                return Ok(end);
            }
        }
    }

    fn ask(&mut self) {
        if self.asked.elapsed() >= STATUS {
            self.asked = Instant::now();
            for side in Side::ALL {
                self.show.company.order(side, "status");
            }
        }
    }

    fn view(&self) -> View {
        let board = lock(&self.show.board);
        let records = self.show.records.each_ref().map(|record| lock(record));
        let mut view = View::new(self.show, &board, [&*records[0], &*records[1]]);
        view.tweak = self.tweak;
        let said = self.notice.as_ref().filter(|(at, _)| at.elapsed() < NOTICE);
        view.notice =
            said.map(|(_, words)| words.clone()).or_else(|| board.notices.last().cloned());
        view
    }

    fn say(&mut self, words: impl Into<String>) {
        self.notice = Some((Instant::now(), words.into()));
    }

    /// Does what a key stands for; some end the demo.
    fn press(&mut self, key: KeyEvent) -> Option<End> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(End::Interrupted),
            KeyCode::Char('q') | KeyCode::Esc => return Some(End::Quit),
            KeyCode::Char('+' | '=') | KeyCode::Up => {
                let factor = (self.tweak.factor * STEP).min(FACTOR_MAX);
                self.change(Tweak { factor, ..self.tweak });
            }
            KeyCode::Char('-') | KeyCode::Down => {
                let factor = (self.tweak.factor / STEP).max(1.0 / FACTOR_MAX);
                self.change(Tweak { factor, ..self.tweak });
            }
            KeyCode::Char('r') => self.change(Tweak { storm: !self.tweak.storm, ..self.tweak }),
            KeyCode::Char('b') => self.change(Tweak { bad: !self.tweak.bad, ..self.tweak }),
            KeyCode::Char('d') => self.dark(),
            KeyCode::Char('o') => self.dashboard(),
            _ => {}
        }
        None
    }

    fn change(&mut self, tweak: Tweak) {
        let stage = lock(&self.show.board).stage;
        match stage {
            Stage::Driving(Some(Side::Protected)) => {
                self.say("the protected side gets what the bare one got, at the same moments");
            }
            Stage::Driving(_) => {
                self.tweak = tweak;
                self.show.tweak(tweak);
                self.say("changed; figures of this phase are no longer those of the script");
            }
            _ => self.say("not yet: the load has not begun"),
        }
    }

    fn dark(&mut self) {
        let now = {
            let board = lock(&self.show.board);
            let running = matches!(board.stage, Stage::Driving(None | Some(Side::Protected)));
            let status = board.statuses[Side::Protected.index()].as_ref();
            running.then(|| status.is_some_and(|status| status.dark))
        };
        match now {
            None => self.say("dark mode is for the protected service, which does not run now"),
            Some(true) => {
                self.show.company.order(Side::Protected, "dark off");
                self.say("dark mode is off: it refuses again");
            }
            Some(false) => {
                self.show.company.order(Side::Protected, "dark on");
                self.say("dark mode: it decides and counts, and lets everything pass");
            }
        }
    }

    fn dashboard(&mut self) {
        let words = {
            match lock(&self.show.board).window.clone() {
                Some(url) if (self.browse)(&url) => format!("opening {url} in your browser"),
                Some(url) => format!("the dashboard is at {url}"),
                None => "there is no dashboard: the notices say why".to_owned(),
            }
        };
        self.say(words);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpus::{Places, Turns};
    use super::super::service::Status;
    use super::*;

    fn show(stage: Stage) -> Show {
        let options = super::super::Options::example();
        let show = Show::new(&options, Places::find(Turns::AtOnce, true));
        lock(&show.board).stage = stage;
        show
    }

    /// What a desk says after some keys.
    fn pressed(desk: &mut Desk<'_>, keys: &str) -> String {
        for key in keys.chars() {
            assert_eq!(desk.press(KeyCode::Char(key).into()), None);
        }
        desk.notice.take().map_or(String::new(), |(_, words)| words)
    }

    #[test]
    fn keys_change_the_load_of_what_is_driven() {
        let show = show(Stage::Driving(None));
        let mut desk = Desk::new(&show);
        assert!(pressed(&mut desk, "+rb").starts_with("changed"));
        assert_eq!(desk.tweak, Tweak { factor: 1.25, storm: true, bad: true });
        pressed(&mut desk, "++++++++++rb");
        assert_eq!(desk.tweak, Tweak { factor: FACTOR_MAX, storm: false, bad: false });
        pressed(&mut desk, "-----------------------");
        assert_eq!(desk.tweak.factor, 1.0 / FACTOR_MAX);
    }

    #[test]
    fn what_cannot_be_now_says_why() {
        let before = show(Stage::Calibrating);
        let mut desk = Desk::new(&before);
        assert!(pressed(&mut desk, "+").contains("not yet"));
        assert!(pressed(&mut desk, "d").contains("does not run now"));
        assert_eq!(desk.tweak, Tweak::NONE);
        let second = show(Stage::Driving(Some(Side::Protected)));
        let mut desk = Desk::new(&second);
        assert!(pressed(&mut desk, "b").contains("gets what the bare one got"));
        assert_eq!(desk.tweak, Tweak::NONE);
    }

    #[test]
    fn dark_mode_goes_on_and_off_and_a_dashboard_is_named_if_there_is_one() {
        let show = show(Stage::Driving(None));
        let mut desk = Desk::new(&show);
        assert!(pressed(&mut desk, "d").starts_with("dark mode: it decides"));
        let dark = Status { dark: true, sentence: String::new() };
        lock(&show.board).statuses[Side::Protected.index()] = Some(dark);
        assert!(pressed(&mut desk, "d").starts_with("dark mode is off"));
        desk.browse = |_| false;
        assert!(pressed(&mut desk, "o").starts_with("there is no dashboard"));
        lock(&show.board).window = Some("http://b/".to_owned());
        assert_eq!(pressed(&mut desk, "o"), "the dashboard is at http://b/");
        desk.browse = |_| true;
        assert_eq!(pressed(&mut desk, "o"), "opening http://b/ in your browser");
    }

    #[test]
    fn the_first_error_is_told() {
        let failed = || Err(io::Error::other("restoring"));
        let drawing = || Err("drawing".into());
        assert_eq!(first::<u8>(drawing(), failed()).unwrap_err().to_string(), "drawing");
        assert_eq!(first::<u8>(drawing(), Ok(())).unwrap_err().to_string(), "drawing");
        assert_eq!(first(Ok(1), failed()).unwrap_err().to_string(), "restoring");
        assert_eq!(first(Ok(1), Ok(())).unwrap(), 1);
    }

    #[test]
    fn some_keys_end_it() {
        let show = show(Stage::Driving(None));
        let mut desk = Desk::new(&show);
        assert_eq!(desk.press(KeyCode::Char('q').into()), Some(End::Quit));
        assert_eq!(desk.press(KeyCode::Esc.into()), Some(End::Quit));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(desk.press(control_c), Some(End::Interrupted));
    }
}
