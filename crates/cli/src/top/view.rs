//! What is known of a part, and what of it is looked at.

use ratatui::crossterm::event::KeyCode;
use std::collections::VecDeque;
use tidegate::admin::api::{Event, Explanation, Snapshot, Update};

/// Three minutes: as much as fits across a wide terminal, a second to half a cell.
const ROWS_MAX: usize = 400;
/// More than a tall terminal shows.
const EVENTS_MAX: usize = 200;

/// What is known of a part.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    /// Newest first.
    pub(super) events: VecDeque<Event>,
    pub(super) offered: Line,
    pub(super) good: Line,
    pub(super) capacity: Line,
    pub(super) p99: Line,
    /// Nobody answers.
    pub(super) away: bool,
    /// Nothing new is taken in.
    pub(super) paused: bool,
    /// Which of the events.
    pub(super) chosen: usize,
    pub(super) explained: Option<Explanation>,
}

/// One number a second, and the time of each.
#[derive(Debug, Default)]
pub(super) struct Line(pub(super) VecDeque<(u64, Option<f32>)>);

impl Line {
    fn push(&mut self, at_ms: u64, number: Option<f32>) {
        // What the server remembers comes once more when it is asked anew.
        if self.0.back().is_some_and(|(last, _)| *last >= at_ms) {
            return;
        }
        if self.0.len() == ROWS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((at_ms, number));
    }
}

impl View {
    pub(super) fn take(&mut self, update: Update) {
        self.away = false;
        if self.paused {
            return;
        }
        let columns = &update.series.columns;
        let place = |name: &str| columns.iter().position(|column| column == name);
        let lines = [
            (&mut self.offered, place("offered")),
            (&mut self.good, place("good")),
            (&mut self.capacity, place("capacity")),
            (&mut self.p99, place("p99")),
        ];
        for (line, place) in lines {
            for (at_ms, numbers) in &update.series.rows {
                line.push(*at_ms, place.and_then(|n| numbers.get(n).copied().flatten()));
            }
        }
        for event in update.events {
            if self.events.iter().any(|known| known.id == event.id) {
                continue;
            }
            // Whoever has chosen one keeps it.
            self.chosen += usize::from(self.chosen > 0);
            self.events.push_front(event);
        }
        self.events.truncate(EVENTS_MAX);
        self.chosen = self.chosen.min(self.events.len().saturating_sub(1));
        self.snapshot = update.snapshot;
    }

    /// Does what the key says. False if that is to leave.
    pub(super) fn press(
        &mut self,
        key: KeyCode,
        explain: impl Fn(&str) -> Option<Explanation>,
    ) -> bool {
        if self.explained.take().is_some() {
            return key != KeyCode::Char('q');
        }
        let last = self.events.len().saturating_sub(1);
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Down | KeyCode::Char('j') => self.chosen = (self.chosen + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Home => self.chosen = 0,
            KeyCode::Enter => {
                let event = self.events.get(self.chosen);
                self.explained = event.map(|event| {
                    explain(&event.id).unwrap_or_else(|| {
                        let mut unknown = Explanation::default();
                        unknown.id.clone_from(&event.id);
                        unknown.title = format!("{} (no more is remembered)", event.text);
                        unknown.at_ms = event.at_ms;
                        unknown
                    })
                });
            }
            _ => {}
        }
        true
    }
}
