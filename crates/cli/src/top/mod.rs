//! `tidegate top`: the essence of the dashboard in a terminal.
//!
//! It reads the stream that the page reads. In a terminal it draws ([`screen`]) until somebody
//! leaves; without one, or with `--once`, it prints how things stand ([`text`]) and ends.

mod feed;
mod screen;
mod text;
mod view;

use crate::remote::Place;
use crate::{Ending, Failure};
use feed::Feed;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal as _;
use std::time::Duration;
use tidegate::admin::api::{Explanation, Update};
use view::View;

/// How soon a key is answered, and a resize followed.
const TURN: Duration = Duration::from_millis(100);

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// Which part, if there are several; the first if not said
    #[arg(long, value_name = "NAME")]
    part: Option<String>,
    /// Print how things stand, and end; so without a terminal
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let remote = options.place.remote()?;
    let path = match &options.part {
        Some(part) => format!("/api/stream?part={}", escaped(part)),
        None => "/api/stream".to_owned(),
    };
    let mut stream = remote.stream(&path)?;
    let first = stream.next().and_then(|data| serde_json::from_str::<Update>(&data).ok());
    let Some(first) = first else {
        return Err(Failure {
            what: format!("could not read what {} says", remote.name()),
            why: "its stream does not begin with how things stand".to_owned(),
            next: "see that both sides are tidegate, of about the same version",
        });
    };
    let mut view = View::default();
    view.take(first);
    if options.once || !std::io::stdout().is_terminal() {
        return Ok(Ending::from(text::text(&view)));
    }
    let feed = Feed::start(remote.clone(), path, stream);
    let shown = show(&mut view, &feed, |id| {
        let (status, text) = remote.get(&format!("/api/explain/{id}")).ok()?;
        (status == 200).then(|| serde_json::from_str(&text).ok()).flatten()
    });
    shown.map_err(|error| Failure {
        what: "could not draw".to_owned(),
        why: error.to_string(),
        next: "use --once, which needs no terminal",
    })?;
    Ok(Ending::default())
}

/// As it stands in an address.
fn escaped(name: &str) -> String {
    let written = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    name.bytes().map(written).collect()
}

/// Draws until somebody leaves. The terminal is as it was afterwards, whatever happens.
fn show(
    view: &mut View,
    feed: &Feed,
    explain: impl Fn(&str) -> Option<Explanation>,
) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = loop {
        feed.read(view);
        if let Err(error) = terminal.draw(|frame| screen::draw(frame, view)) {
            break Err(error);
        }
        match next_key() {
            Err(error) => break Err(error),
            Ok(Some(key)) if !view.press(key, &explain) => break Ok(()),
            Ok(_) => {}
        }
    };
    let restored = ratatui::try_restore();
    // What went wrong first is what there is to tell.
    shown.and(restored)
}

/// The key that is pressed within a turn, if any is. Ctrl-C is that of leaving.
fn next_key() -> std::io::Result<Option<KeyCode>> {
    if !event::poll(TURN)? {
        return Ok(None);
    }
    let Event::Key(key) = event::read()? else { return Ok(None) };
    if key.kind == KeyEventKind::Release {
        return Ok(None);
    }
    let interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    Ok(Some(if interrupt { KeyCode::Char('q') } else { key.code }))
}
