//! Goodput over time as an SVG that needs nothing else: no script, no style sheet, no font file.

use super::report::{Report, Side};
use std::fmt::Write as _;

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 380.0;
/// The plot's left, top, right and bottom edge.
const LEFT: f64 = 70.0;
const TOP: f64 = 78.0;
const RIGHT: f64 = WIDTH - 20.0;
const BOTTOM: f64 = HEIGHT - 52.0;
/// Points for each phase: half a second each in a phase of ten.
const POINTS: usize = 20;
/// The upper end of the axis: a second may do a little more than a second's work, as what was begun
/// in the one before counts when it is done.
const GOODPUT_MAX: f64 = 1.2;

/// Ink for what is to be read, and for what is to be there without being seen much.
const INK: &str = "#1f2933";
const FAINT: &str = "#9aa5b1";
/// Colour and width of each side's line: where both are the same, the wider one shows beneath.
const LINES: [(&str, f64); 2] = [("#ea7c3c", 5.0), ("#0f766e", 2.2)];

/// The chart of a run.
pub(super) fn svg(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, (LEFT, 26.0), "font-size=\"16\" font-weight=\"bold\"", INK, TITLE);
    phases(&mut svg, report);
    axes(&mut svg, report);
    for ((name, side), (colour, width)) in report.sides.named().into_iter().zip(LINES) {
        line(&mut svg, side, colour, width);
        let at = if name == "bare" { LEFT } else { LEFT + 80.0 };
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"38\" width=\"18\" height=\"4\" fill=\"{colour}\"/>"
        );
        text(&mut svg, (at + 24.0, 45.0), "", INK, name);
    }
    svg.push_str("</svg>\n");
    svg
}

const TITLE: &str = "Answers in time, bare and behind tidegate (virtual time)";

/// The stretch of each phase, its name over it, and the surge shaded.
fn phases(svg: &mut String, report: &Report) {
    let phases = &report.sides.bare.phases;
    let width = (RIGHT - LEFT) / phases.len() as f64;
    for (i, phase) in phases.iter().enumerate() {
        let left = LEFT + width * i as f64;
        let fill = if phase.load > 1.0 { "#fdf0e6" } else { "#f5f7fa" };
        let height = BOTTOM - TOP;
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" \
             fill=\"{fill}\" stroke=\"#ffffff\" stroke-width=\"2\"/>"
        );
        let name = format!("{}, {}x offered", phase.name, phase.load);
        text(svg, (left + width / 2.0, TOP - 8.0), MIDDLE, INK, &name);
    }
}

fn axes(svg: &mut String, report: &Report) {
    for percent in (0..=100).step_by(25) {
        let y = y(f64::from(percent) / 100.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{RIGHT}\" y2=\"{y}\" stroke=\"{FAINT}\" \
             stroke-width=\"0.6\"/>"
        );
        text(svg, (LEFT - 8.0, y + 4.5), "text-anchor=\"end\"", INK, &format!("{percent} %"));
    }
    let phases = report.sides.bare.phases.len() as u64;
    for i in 0..=2 * phases {
        let share = i as f64 / (2 * phases) as f64;
        let seconds = share * (phases * report.seconds) as f64;
        text(svg, (x(share), BOTTOM + 18.0), MIDDLE, INK, &format!("{seconds}"));
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    text(svg, (middle, HEIGHT - 12.0), MIDDLE, INK, "seconds");
    let (x, y) = (18.0, f64::midpoint(TOP, BOTTOM));
    let turned = format!("{MIDDLE} transform=\"rotate(-90 {x} {y})\"");
    text(svg, (x, y), &turned, INK, "goodput, % of capacity");
}

fn line(svg: &mut String, side: &Side, colour: &str, width: f64) {
    let goodput: Vec<f64> = side.phases.iter().flat_map(|phase| phase.stretches(POINTS)).collect();
    let mut points = String::new();
    for (i, &share) in goodput.iter().enumerate() {
        let x = x((i as f64 + 0.5) / goodput.len() as f64);
        let _ = write!(points, "{x:.1},{:.1} ", y(share));
    }
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
         stroke-linejoin=\"round\" points=\"{}\"/>",
        points.trim_end()
    );
}

const MIDDLE: &str = "text-anchor=\"middle\"";

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, fill: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\" {attributes}>{words}</text>");
}

/// Where a share of the whole time is.
fn x(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share
}

/// Where a goodput is.
fn y(goodput: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * (goodput / GOODPUT_MAX).clamp(0.0, 1.0)
}
