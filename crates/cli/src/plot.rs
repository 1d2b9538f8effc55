//! Plots as SVG for a page that brings the styles: curves, stacks, bands and heat maps over time.
//!
//! Nothing here asks for a logarithm or a sine: they differ in the last bit between platforms, and
//! the same run is to be the same bytes.

use core::ops::Range;
use core::time::Duration;
use std::fmt::Write as _;
use tidegate_sim::scenario::written;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 242.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 12.0;
/// Over the plot are a title, what the colours stand for, and the names of the windows.
const TOP: f64 = 52.0;
const BOTTOM: f64 = HEIGHT - 32.0;
/// More points than this are narrower than a pixel or two.
const POINTS: usize = 180;
/// Colours that the page has.
pub(crate) const COLOURS: usize = 7;

/// How values are laid out from bottom to top.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scale {
    /// From 0 to this.
    Linear(f64),
    /// From the first to the second, each doubling as high as the other.
    Doublings(f64, f64),
}

/// A plot that is being drawn.
#[derive(Debug)]
pub(crate) struct Plot {
    svg: String,
    seconds: f64,
    scale: Scale,
    /// What the colours stand for. The pieces of one text follow each other whatever the size of
    /// the letters, which is the page's to choose.
    legend: String,
}

/// What may stand between tags.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The logarithm to the base of 2 at powers of it, and straight lines between.
fn doublings(mut value: f64) -> f64 {
    let mut count = 0.0;
    while value >= 2.0 {
        value /= 2.0;
        count += 1.0;
    }
    while value < 1.0 && value > 1e-12 {
        value *= 2.0;
        count -= 1.0;
    }
    count + value - 1.0
}

/// The least of 1, 2 and 5 times a power of ten that is not below `value`.
fn nice(value: f64) -> f64 {
    let mut power = 1e-9;
    loop {
        for step in [1.0, 2.0, 5.0] {
            if step * power >= value {
                return step * power;
            }
        }
        power *= 10.0;
    }
}

impl Scale {
    /// A linear scale with room for `top`, up to a round number.
    pub(crate) fn up_to(top: f64) -> Self {
        let step = nice(if top > 0.0 { top } else { 1.0 } / 5.0);
        let steps = (top / step).ceil().max(1.0);
        Self::Linear(steps * step)
    }

    /// Doublings with room for everything from `least` to `most`.
    pub(crate) fn over(least: f64, most: f64) -> Self {
        let most = if most > least { most } else { least * 2.0 };
        Self::Doublings(least * 0.8, most * 1.25)
    }

    fn height(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(top) => value / top,
            Self::Doublings(from, to) => {
                let from_count = doublings(from);
                (doublings(value) - from_count) / (doublings(to) - from_count)
            }
        };
        BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0)
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(top) => {
                let step = nice(top / 5.0);
                let count = (top / step).round() as u32;
                (0..=count).map(|i| f64::from(i) * step).collect()
            }
            Self::Doublings(from, to) => {
                let mut ticks = Vec::new();
                let mut tick = nice(from);
                while tick <= to {
                    ticks.push(tick);
                    // Between a step and the next, as sums of tenths are not exact.
                    tick = nice(tick * 1.5);
                }
                // A line for each power of ten is enough where there are many.
                if ticks.len() > 7 {
                    ticks.retain(|&tick| is_power(tick));
                }
                ticks
            }
        }
    }
}

fn is_power(value: f64) -> bool {
    let mut power = 1e-9;
    while power < value * 0.99 {
        power *= 10.0;
    }
    (power / value - 1.0).abs() < 0.01
}

/// The means of at most [`POINTS`] stretches.
pub(crate) fn thinned(values: &[f64]) -> Vec<Option<f64>> {
    let count = values.len().min(POINTS);
    let mean = |i: usize| {
        let part = &values[i * values.len() / count..(i + 1) * values.len() / count];
        Some(part.iter().sum::<f64>() / part.len() as f64)
    };
    (0..count).map(mean).collect()
}

impl Plot {
    pub(crate) fn new(
        title: &str,
        lasts: Duration,
        windows: &[(String, Range<Duration>)],
        scale: Scale,
        unit: &str,
    ) -> Self {
        let title = escaped(title);
        let svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
             <text x=\"{LEFT}\" y=\"14\" class=\"title\">{title}</text>\n"
        );
        let mut plot = Self { svg, seconds: lasts.as_secs_f64(), scale, legend: String::new() };
        for (name, span) in windows {
            plot.window(name, span);
        }
        plot.axes(unit);
        plot
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * seconds / self.seconds
    }

    fn window(&mut self, name: &str, span: &Range<Duration>) {
        let from = self.x(span.start.as_secs_f64());
        let width = self.x(span.end.as_secs_f64()) - from;
        let _ = writeln!(
            self.svg,
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{}\" \
             class=\"window\"><title>{}</title></rect>",
            BOTTOM - TOP,
            escaped(name)
        );
        // A letter is about six wide, and nine where the page is narrow.
        if name.chars().count() as f64 * 8.0 < width {
            self.text((from + width / 2.0, TOP - 5.0), "middle faint", name);
        }
    }

    fn axes(&mut self, unit: &str) {
        for tick in self.scale.ticks() {
            let y = self.scale.height(tick);
            let _ = writeln!(self.svg, "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" class=\"grid\"/>");
            self.text((LEFT - 6.0, y + 4.0), "end", &written(tick, unit));
        }
        let step = nice(self.seconds / 6.0);
        let count = (self.seconds / step) as u32;
        for i in 0..=count {
            let seconds = f64::from(i) * step;
            let label = written(seconds, "seconds");
            self.text((self.x(seconds), BOTTOM + 20.0), "middle", &label);
        }
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, words: &str) {
        let words = escaped(words);
        let _ =
            writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{words}</text>");
    }

    /// Says what a colour stands for.
    pub(crate) fn name(&mut self, colour: usize, words: &str) {
        let (words, colour) = (escaped(words), colour % COLOURS);
        let gap = if self.legend.is_empty() { 0 } else { 12 };
        let _ = write!(
            self.legend,
            "<tspan dx=\"{gap}\" class=\"f{colour}\">\u{25a0}</tspan>\
             <tspan dx=\"4\">{words}</tspan>"
        );
    }

    /// A curve through the middle of equal stretches; where there is nothing it breaks off.
    pub(crate) fn line(&mut self, values: &[Option<f64>], colour: usize, class: &str) {
        let mut path = String::new();
        let mut pen_down = false;
        for (i, value) in values.iter().enumerate() {
            let Some(value) = value else {
                pen_down = false;
                continue;
            };
            let x = self.x((i as f64 + 0.5) / values.len() as f64 * self.seconds);
            let word = if pen_down { 'L' } else { 'M' };
            let _ = write!(path, "{word}{x:.1} {:.1}", self.scale.height(*value));
            pen_down = true;
        }
        let colour = colour % COLOURS;
        let _ = writeln!(self.svg, "<path d=\"{path}\" class=\"line s{colour} {class}\"/>");
    }

    /// What lies between two curves.
    pub(crate) fn band(&mut self, low: &[f64], high: &[f64], colour: usize, class: &str) {
        let point = |i: usize, value: f64| {
            let x = self.x((i as f64 + 0.5) / high.len() as f64 * self.seconds);
            format!("{x:.1} {:.1}", self.scale.height(value))
        };
        let there = high.iter().enumerate().map(|(i, &value)| point(i, value));
        let back = low.iter().enumerate().rev().map(|(i, &value)| point(i, value));
        let points: Vec<String> = there.chain(back).collect();
        let colour = colour % COLOURS;
        if !points.is_empty() {
            let path = points.join("L");
            let _ = writeln!(self.svg, "<path d=\"M{path}Z\" class=\"f{colour} {class}\"/>");
        }
    }

    /// Values from 0 to 1 as shades, a row for each of `rows`.
    pub(crate) fn heat(&mut self, rows: &[Vec<f64>]) {
        let height = (BOTTOM - TOP) / rows.len() as f64;
        for (i, row) in rows.iter().enumerate() {
            let width = (RIGHT - LEFT) / row.len().max(1) as f64;
            let y = TOP + height * i as f64;
            for (j, value) in row.iter().enumerate() {
                let x = LEFT + width * j as f64;
                let shade = value.clamp(0.0, 1.0);
                let _ = writeln!(
                    self.svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.1}\" \
                     height=\"{height:.2}\" class=\"f0\" fill-opacity=\"{shade:.2}\"/>"
                );
            }
        }
    }

    pub(crate) fn finish(mut self) -> String {
        if !self.legend.is_empty() {
            let _ = writeln!(
                self.svg,
                "<text x=\"{LEFT}\" y=\"31\" class=\"legend\">{}</text>",
                self.legend
            );
        }
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_numbers_and_doublings_by_the_table() {
        for (value, expected) in [(0.03, 0.05), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (600.0, 1000.0)]
        {
            assert!((nice(value) / expected - 1.0).abs() < 1e-9, "{value}: {}", nice(value));
        }
        for (value, expected) in [(1.0, 0.0), (8.0, 3.0), (0.25, -2.0), (12.0, 3.5)] {
            assert_eq!(doublings(value), expected, "{value}");
        }
    }

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
