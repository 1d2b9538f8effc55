//! The screen of `tidegate top`.
//!
//! From the top down as much as there is room for: the sentence, the figures, two charts, then
//! tables side by side, and the last decisions in what is left. Colours are those of the page; what
//! they say stands there in words too, so that nothing is lost without them.

use super::text::{brief, figures, span};
use super::view::{Line, View};
use crate::explain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::symbols::Marker;
use ratatui::text::{Line as Words, Span};
use ratatui::widgets::{
    Axis, Block, Cell, Chart, Clear, Dataset, GraphType, List, ListItem, ListState, Paragraph, Row,
    Table, Wrap,
};
use tidegate::admin::api::Kind;

const GOOD: Color = Color::Green;
const WARN: Color = Color::Yellow;
const BAD: Color = Color::LightRed;
const LINE: Color = Color::Cyan;
/// Below this a chart is a smear.
const CHART_MIN: u16 = 7;
/// The most lines that a table takes.
const TABLE: u16 = 9;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let charts = if area.height >= 30 { CHART_MIN + area.height / 10 } else { 0 };
    let tables = if area.height >= 18 { TABLE } else { 0 };
    let [head, state, charts, tables, decisions, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(charts),
        Constraint::Length(tables),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, view);
    draw_state(frame, state, view);
    if charts.height >= CHART_MIN {
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(60), Constraint::Fill(1)]).areas(charts);
        let lines = [
            ("offered", &view.offered, WARN),
            ("capacity", &view.capacity, Color::Gray),
            ("goodput", &view.good, GOOD),
        ];
        draw_chart(frame, left, "requests a second", &lines);
        draw_chart(frame, right, "p99 of admitted, ms", &[("p99", &view.p99, BAD)]);
    }
    if tables.height > 0 {
        draw_tables(frame, tables, view);
    }
    draw_decisions(frame, decisions, view);
    let text = " q leave   ↑↓ choose   enter explain   space pause";
    frame.render_widget(Paragraph::new(text).dim(), keys);
    if let Some(explained) = &view.explained {
        draw_explained(frame, &explain::plain(explained));
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let snapshot = &view.snapshot;
    let up = span(snapshot.at_ms.saturating_sub(snapshot.began_ms));
    let part =
        if snapshot.parts.len() > 1 { format!("  {}", snapshot.part) } else { String::new() };
    let mut words = vec![
        Span::from(format!(" {}{part}", snapshot.service)).bold(),
        Span::from(format!("  tidegate {}, up {up}", snapshot.version)).dim(),
    ];
    if view.away {
        words.push(Span::from("  does not answer; trying again").fg(BAD).bold());
    }
    if view.paused {
        words.push(Span::from("  paused").fg(WARN).bold());
    }
    frame.render_widget(Paragraph::new(Words::from(words)), area);
}

fn draw_state(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let snapshot = &view.snapshot;
    let color = match snapshot.state.kind {
        Kind::Healthy => GOOD,
        Kind::Shedding | Kind::Overrun | Kind::Gone | Kind::Failed => BAD,
        Kind::Degrading | Kind::OutOfQuota | Kind::LameDuck => WARN,
        _ => LINE,
    };
    let since = span(snapshot.at_ms.saturating_sub(snapshot.state.since_ms));
    let retry = if snapshot.state.dont_retry { ", tells callers not to retry" } else { "" };
    let mut numbers = Vec::new();
    for (name, figure) in figures(snapshot) {
        numbers.push(Span::from(format!("{name} ")).dim());
        numbers.push(Span::from(format!("{figure}   ")).bold());
    }
    let lines = vec![
        Words::from(snapshot.state.sentence.clone()).fg(color).bold(),
        Words::from(format!("for {since}{retry}")).dim(),
        Words::from(numbers),
    ];
    let block = Block::bordered().border_style(Style::new().fg(color));
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: true }), area);
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[(&str, &Line, Color)]) {
    let newest = lines.iter().filter_map(|(_, line, _)| line.0.back()).map(|(at, _)| *at).max();
    let newest = newest.unwrap_or(0);
    // Two dots to a cell, a second to a dot.
    let seconds = (f64::from(area.width.max(12)) - 10.0) * 2.0;
    let points: Vec<Vec<(f64, f64)>> =
        lines.iter().map(|(_, line, _)| dots(line, newest)).collect();
    let shown = points.iter().flatten().filter(|(at, _)| *at >= -seconds);
    let top = shown.map(|(_, number)| *number).fold(1.0, f64::max) * 1.05;
    let sets = lines.iter().zip(&points).map(|((name, _, color), points)| {
        Dataset::default()
            .name(*name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(*color))
            .data(points)
    });
    let chart = Chart::new(sets.collect())
        .block(Block::bordered().title(format!(" {title} ")).border_style(Style::new().dim()))
        .x_axis(Axis::default().bounds([-seconds, 0.0]))
        .y_axis(Axis::default().bounds([0.0, top]).labels(["0".to_owned(), brief(top)]));
    frame.render_widget(chart, area);
}

/// Seconds before the newest, and numbers that are known.
fn dots(line: &Line, newest: u64) -> Vec<(f64, f64)> {
    let dot = |(at, number): &(u64, Option<f32>)| {
        let before = newest.saturating_sub(*at) as f64 / 1e3;
        number.map(|number| (-before, f64::from(number)))
    };
    line.0.iter().filter_map(dot).collect()
}

fn draw_tables(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let snapshot = &view.snapshot;
    let wide = area.width >= 110;
    let shares = if wide { [34, 36, 30] } else { [50, 50, 0] };
    let [levels, signals, others] =
        Layout::horizontal(shares.map(Constraint::Percentage)).areas(area);
    let rows = snapshot.levels.iter().map(|level| {
        let numbers = [level.admitted, level.rejected, level.good].map(brief);
        let refused = level.rejected > 0.0;
        row(&level.criticality, &numbers, refused)
    });
    table(frame, levels, &["by criticality", "in", "out", "good"], rows.collect());
    let rows = snapshot.signals.iter().map(|signal| {
        let numbers = [brief(signal.value), brief(signal.target), brief(signal.ratio)];
        row(&signal.name, &numbers, signal.decides)
    });
    table(frame, signals, &["signal", "value", "target", "ratio"], rows.collect());
    if wide {
        let rows = snapshot.customers.iter().map(|customer| {
            let limit = customer.limit.map_or_else(|| "none".to_owned(), brief);
            let over = customer.wanted > customer.used;
            row(&customer.name, &[brief(customer.used), brief(customer.wanted), limit], over)
        });
        table(frame, others, &["customer", "used", "wants", "limit"], rows.collect());
    }
}

fn row<'a>(name: &'a str, numbers: &[String], strong: bool) -> Row<'a> {
    let numbers = numbers.iter().map(|n| Cell::from(Words::from(n.clone()).right_aligned()));
    let cells = core::iter::once(Cell::from(name)).chain(numbers);
    let row = Row::new(cells.collect::<Vec<_>>());
    if strong { row.style(Style::new().add_modifier(Modifier::BOLD)) } else { row }
}

fn table(frame: &mut Frame<'_>, area: Rect, heads: &[&str; 4], rows: Vec<Row<'_>>) {
    let [name, numbers @ ..] = heads;
    let heads = numbers.iter().map(|n| Cell::from(Words::from(*n).right_aligned()));
    let heads = core::iter::once(Cell::from(*name)).chain(heads).collect::<Vec<_>>();
    let widths =
        [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(8), Constraint::Length(8)];
    let table = Table::new(rows, widths)
        .header(Row::new(heads).dim())
        .block(Block::bordered().border_style(Style::new().dim()));
    frame.render_widget(table, area);
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let items = view.events.iter().map(|event| {
        let time = explain::utc(event.at_ms);
        let time = Span::from(time.get(..8).unwrap_or_default().to_owned()).dim();
        let text = Span::from(format!("  {}", event.text));
        ListItem::new(Words::from(vec![time, if event.change { text.fg(WARN) } else { text }]))
    });
    let list = List::new(items)
        .block(Block::bordered().title(" last decisions ").border_style(Style::new().dim()))
        .highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = ListState::default();
    state.select((!view.events.is_empty()).then_some(view.chosen));
    frame.render_stateful_widget(list, area, &mut state);
}

/// On top of everything else.
fn draw_explained(frame: &mut Frame<'_>, text: &str) {
    let area = frame.area();
    let height = u16::try_from(text.lines().count()).unwrap_or(u16::MAX).saturating_add(6);
    let (width, height) = (area.width.min(100), area.height.min(height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" why ").title_bottom(" any key closes ");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
mod tests;
