//! The screen.
//!
//! ```text
//! what this is                                   which CPU does what
//! phases, the one that goes on lit               what it is there to show
//! ┌ bare ────────────┐┌ protected ─────────┐
//! │ figures, curve   ││ figures, curve     │
//! └──────────────────┘└────────────────────┘
//! notice
//! keys
//! ```

use super::super::script::{PHASES, Tweak};
use super::super::service::Side;
use super::super::show::Stage;
use super::view::{Panel, State, View};
use super::{COLUMNS, ROWS};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, SparklineBar, Wrap};

/// The curve ends this far above the capacity: a quarter of a second may have more answers than a
/// quarter of the capacity.
const TOP: f64 = 1.2;
/// Characters of a bar of success.
const BAR: usize = 16;
/// Steps of the curve: eight for each of its rows, and there are five at least.
const STEPS: f64 = 1_000.0;

const LEVELS: [&str; 4] = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];

const fn colour(side: Side) -> Color {
    match side {
        Side::Bare => Color::LightRed,
        Side::Protected => Color::LightGreen,
    }
}

const fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

const fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// All of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    if area.width < COLUMNS || area.height < ROWS {
        let words = format!(
            "The live view needs {COLUMNS}x{ROWS}, this is {}x{}. It goes on all the same; q ends \
             it.",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return;
    }
    let [head, panels, notice, keys] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(14),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(view)), head);
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas::<2>(panels);
    for (half, side) in halves.into_iter().zip(&view.sides) {
        panel(frame, half, side, view);
    }
    let words = view.notice.clone().unwrap_or_default();
    let words = Line::from(vec![Span::styled(changes(view.tweak), REVERSED), Span::raw(words)]);
    frame.render_widget(Paragraph::new(words), notice);
    frame.render_widget(Paragraph::new(Line::styled(KEYS, faint())), keys);
}

const KEYS: &str = "+/- load   r retry storm   b bad customer   d dark mode   o dashboard   q quit";

fn heading(view: &View) -> Vec<Line<'static>> {
    let capacity = match (view.stage, view.capacity) {
        (Stage::Starting, _) => "starting".to_owned(),
        (_, None) => "finding out what the service can do".to_owned(),
        (_, Some(capacity)) => format!("capacity {capacity:.0} requests a second"),
    };
    let mut phases = Vec::new();
    for (index, phase) in PHASES.iter().enumerate() {
        let words = match view.phase {
            Some((now, share)) if now == index => {
                let percent = (share * 100.0).floor();
                Span::styled(format!(" {} {percent:.0}% ", phase.name), REVERSED)
            }
            Some((now, _)) if now > index => Span::raw(format!(" {} ", phase.name)),
            _ => Span::styled(format!(" {} ", phase.name), faint()),
        };
        phases.push(words);
    }
    let why = view.script().map_or(String::new(), |phase| phase.why.to_owned());
    vec![
        Line::from(vec![
            Span::styled("tidegate demo", bold()),
            Span::raw(format!("   seed {}   {capacity}", view.seed)),
        ]),
        Line::styled(view.places.clone(), faint()),
        Line::from(phases),
        Line::raw(format!(" {why}")),
    ]
}

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

fn changes(tweak: Tweak) -> String {
    let load = (tweak.factor != 1.0).then(|| format!("load x{:.2} ", tweak.factor));
    let storm = tweak.storm.then(|| "retry storm ".to_owned());
    let bad = tweak.bad.then(|| "bad customer ".to_owned());
    [load, storm, bad].into_iter().flatten().collect()
}

fn panel(frame: &mut Frame<'_>, area: Rect, side: &Panel, view: &View) {
    let state = match side.state {
        State::Waits => "waits for its turn",
        State::Live => "live",
        State::Done => "done",
    };
    let dark = if side.dark { ", dark" } else { "" };
    let title = format!(" {}: {state}{dark} ", side.side.name());
    let style = Style::new().fg(colour(side.side));
    let block = Block::bordered().title(Line::styled(title, style.add_modifier(Modifier::BOLD)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [top, curve, rest, says] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(6),
        Constraint::Length(2),
    ])
    .areas(inner);
    let capacity = view.capacity.unwrap_or_default();
    let share = if capacity > 0.0 { side.goodput / capacity * 100.0 } else { 0.0 };
    let goodput = Line::from(vec![
        Span::styled(format!("goodput {:>4.0}/s", side.goodput), bold()),
        Span::raw(format!(" {share:>3.0} % of what it can do")),
    ]);
    frame.render_widget(Paragraph::new(goodput), top);
    spark(frame, curve, side, capacity, style);
    frame.render_widget(Paragraph::new(figures(side)), rest);
    let words = side.says.clone().unwrap_or_default();
    frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }).style(faint()), says);
}

fn spark(frame: &mut Frame<'_>, area: Rect, side: &Panel, capacity: f64, style: Style) {
    let top = (capacity * TOP).max(1.0);
    let bar = |value: Option<f64>| {
        SparklineBar::from(value.map(|rate| (rate / top * STEPS).clamp(0.0, STEPS) as u64))
    };
    let bars: Vec<SparklineBar> =
        side.columns(usize::from(area.width)).into_iter().map(bar).collect();
    let sparkline = Sparkline::default().data(bars).max(STEPS as u64).style(style);
    frame.render_widget(sparkline.absent_value_symbol(" "), area);
}

fn figures(side: &Panel) -> Vec<Line<'static>> {
    let p99 = side.p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
    let mut lines = vec![
        Line::raw(format!("p99 of admitted {p99}")),
        Line::raw(format!(
            "{:.2} attempts a request, {:.0}/s offered",
            side.amplification, side.offered
        )),
    ];
    for (name, share) in LEVELS.iter().zip(side.success) {
        let filled = (share.unwrap_or_default() * BAR as f64).round() as usize;
        let bar = "█".repeat(filled.min(BAR)) + &"░".repeat(BAR - filled.min(BAR));
        let percent = share.map_or("   -".to_owned(), |share| format!("{:>3.0}%", share * 100.0));
        lines.push(Line::raw(format!("{name:<14} {bar} {percent}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::super::record::Record;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let calm = (0, 35, 35);
        let mut bare = vec![calm; 10];
        bare.extend([(1, 100, 0); 10]);
        let mut protected = vec![calm; 10];
        protected.extend([(1, 100, 48); 6]);
        let mut record = Record::drawn(&protected);
        record.phase = Some(1);
        let mut bare = Record::drawn(&bare);
        bare.over = 2;
        let mut sides = [Panel::of(Side::Bare, &bare, 40), Panel::of(Side::Protected, &record, 40)];
        sides[1].says = Some("sheds SHEDDABLE and below".to_owned());
        View {
            seed: 7,
            places: "services on CPU 0, load on CPU 1".to_owned(),
            capacity: Some(200.0),
            stage: Stage::Driving(Some(Side::Protected)),
            phase: Some((1, 0.5)),
            sides,
            tweak: Tweak { factor: 1.25, storm: true, bad: false },
            notice: Some("port 8080 is taken".to_owned()),
        }
    }

    /// The screen as text.
    fn screen(view: &View, (columns, rows): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        let lines = cells.chunks(usize::from(columns)).map(<[&str]>::concat);
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn both_sides_stand_beside_each_other() {
        assert_eq!(screen(&view(), (80, 24)), include_str!("screen.txt"));
    }

    #[test]
    fn a_larger_screen_has_room_for_more_curve_and_a_small_one_says_so() {
        let large = screen(&view(), (120, 50));
        for word in ["bare: done", "protected: live", "SHEDDABLE_PLUS", "q quit"] {
            assert!(large.contains(word), "{word} in\n{large}");
        }
        let small = screen(&view(), (60, 10));
        assert!(small.contains("needs 80x24, this is 60x10"), "{small}");
        assert!(!small.contains("goodput"), "{small}");
    }

    #[test]
    fn before_anything_is_known_nothing_is_claimed() {
        let mut view = view();
        view.stage = Stage::Calibrating;
        view.capacity = None;
        view.phase = None;
        view.sides = Side::ALL.map(|side| Panel::of(side, &Record::default(), 40));
        let screen = screen(&view, (80, 24));
        for word in ["finding out what the service can do", "waits for its turn", "   -"] {
            assert!(screen.contains(word), "{word} in\n{screen}");
        }
    }
}
