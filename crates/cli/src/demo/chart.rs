//! Goodput over time as an SVG that needs nothing else: no script, no style sheet, no font file.

use super::report::{PhaseReport, Report, SideReport};
use super::service::Side;
use std::fmt::Write as _;

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 380.0;
/// The plot's left, top, right and bottom edge.
const LEFT: f64 = 70.0;
const TOP: f64 = 78.0;
const RIGHT: f64 = WIDTH - 20.0;
const BOTTOM: f64 = HEIGHT - 52.0;
/// The upper end of the axis: a quarter of a second may have more answers than a quarter of the
/// capacity, as what was begun before counts when it is done.
const GOODPUT_MAX: f64 = 1.2;

/// Ink for what is to be read, and for what is to be there without being seen much.
const INK: &str = "#1f2933";
const FAINT: &str = "#9aa5b1";
/// Colour and width of each side's line: where both are the same, the wider one shows beneath.
const LINES: [(&str, f64); 2] = [("#d55e00", 4.0), ("#0072b2", 2.2)];

const TITLE: &str = "Answers in time, bare and behind tidegate (real processes)";

/// The chart of a run.
pub(super) fn svg(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, (LEFT, 26.0), "font-size=\"16\" font-weight=\"bold\"", INK, TITLE);
    let phases = &report.bare.phases;
    let seconds = phases.last().map_or(1.0, |phase| phase.begins + phase.seconds);
    for phase in phases {
        shade(&mut svg, phase, seconds);
    }
    axes(&mut svg, seconds);
    for (side, (colour, width)) in Side::ALL.into_iter().zip(LINES) {
        let stroke = format!("stroke=\"{colour}\" stroke-width=\"{width}\"");
        line(&mut svg, report.side(side), seconds, report.capacity_rps, &stroke);
        let at = LEFT + 80.0 * side.index() as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"38\" width=\"18\" height=\"4\" fill=\"{colour}\"/>"
        );
        text(&mut svg, (at + 24.0, 45.0), "", INK, side.name());
    }
    svg.push_str("</svg>\n");
    svg
}

/// The stretch of a phase, its name over it; darker where more is asked than can be done.
fn shade(svg: &mut String, phase: &PhaseReport, seconds: f64) {
    let left = x(phase.begins / seconds);
    let width = x((phase.begins + phase.seconds) / seconds) - left;
    let overload = phase.load > 1.0 || phase.bad_customer.is_some();
    let fill = if overload { "#fdf0e6" } else { "#f5f7fa" };
    let height = BOTTOM - TOP;
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\" \
         fill=\"{fill}\" stroke=\"#ffffff\" stroke-width=\"2\"/>"
    );
    text(svg, (left + width / 2.0, TOP - 8.0), MIDDLE, INK, phase.name);
}

fn axes(svg: &mut String, seconds: f64) {
    for percent in (0..=100).step_by(25) {
        let y = y(f64::from(percent) / 100.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"{FAINT}\" \
             stroke-width=\"0.6\"/>"
        );
        text(svg, (LEFT - 8.0, y + 4.5), "text-anchor=\"end\"", INK, &format!("{percent} %"));
    }
    // About eight labels, at whole seconds.
    let step = (seconds / 8.0).ceil().max(1.0);
    let mut at = 0.0;
    while at <= seconds {
        text(svg, (x(at / seconds), BOTTOM + 18.0), MIDDLE, INK, &format!("{at}"));
        at += step;
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    text(svg, (middle, HEIGHT - 12.0), MIDDLE, INK, "seconds, of each side");
    let (x, y) = (18.0, f64::midpoint(TOP, BOTTOM));
    let turned = format!("{MIDDLE} transform=\"rotate(-90 {x} {y})\"");
    text(svg, (x, y), &turned, INK, "goodput, % of capacity");
}

fn line(svg: &mut String, side: &SideReport, seconds: f64, capacity: f64, stroke: &str) {
    let mut points = String::new();
    let bin = side.curve.first().map_or(0.0, |point| point.at);
    for point in side.curve.iter().filter(|point| point.at <= seconds) {
        let x = x((point.at - bin / 2.0) / seconds);
        let _ = write!(points, "{x:.1},{:.1} ", y(point.goodput_rps / capacity));
    }
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" {stroke} stroke-linejoin=\"round\" points=\"{}\"/>",
        points.trim_end()
    );
}

const MIDDLE: &str = "text-anchor=\"middle\"";

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, fill: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{fill}\" {attributes}>{words}</text>"
    );
}

/// Where a share of the whole time is.
fn x(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share
}

/// Where a goodput is.
fn y(goodput: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * (goodput / GOODPUT_MAX).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_a_line_and_each_phase_its_place() {
        let report = Report::example();
        let svg = svg(&report);
        assert_eq!(svg.matches("<polyline").count(), 2);
        for phase in &report.bare.phases {
            assert!(svg.contains(&format!(">{}</text>", phase.name)), "{}", phase.name);
        }
        assert!(!svg.contains("NaN"));
    }
}
