//! Two variants side by side: every measure in every window, and how they differ.

use super::jobs::Told;
use super::text::{Paint, line};
use tidegate_sim::scenario::{Figure, written};

/// The table of the variants `a` and `b`.
pub(super) fn table(text: &mut String, told: &Told<'_>, (a, b): (&str, &str), paint: Paint) {
    let figures = |name: &str| -> Vec<Figure> {
        let variants = told.scenario.variants.iter().zip(&told.records);
        let found = variants.filter(|(variant, _)| variant.name == name);
        found.flat_map(|(variant, record)| told.scenario.figures(variant, record)).collect()
    };
    let (left, right) = (figures(a), figures(b));
    let mut head = None;
    for figure in &left {
        let same = |other: &&Figure| {
            (&other.window, &other.of, other.measure)
                == (&figure.window, &figure.of, figure.measure)
        };
        let Some(other) = right.iter().find(same) else { continue };
        if figure.value.unwrap_or(0.0) == 0.0 && other.value.unwrap_or(0.0) == 0.0 {
            continue;
        }
        let here = (&figure.window, &figure.of);
        if head.replace(here) != Some(here) {
            let title = format!("{} during {}", figure.of, figure.window);
            let gap = 34_usize.saturating_sub(title.chars().count()).max(1);
            let (title, a, b) = (paint.heading(&title), short(a), short(b));
            line(text, &format!("  {title}{:gap$}{a:>16}{b:>16}{:>12}", "", "2nd/1st"));
        }
        let value = |figure: &Figure| {
            figure.value.map_or_else(|| "-".to_owned(), |value| written(value, figure.unit))
        };
        let ratio = figure.value.zip(other.value).filter(|(this, _)| *this > 0.0);
        let ratio = ratio.map_or_else(|| "-".to_owned(), |(a, b)| written(b / a, "times"));
        let (this, that) = (value(figure), value(other));
        line(text, &format!("    {:<32}{this:>16}{that:>16}{ratio:>12}", figure.measure));
    }
    text.push('\n');
}

/// A name that leaves room between columns.
fn short(name: &str) -> String {
    if name.chars().count() < 16 {
        return name.to_owned();
    }
    name.chars().take(14).chain(['…']).collect()
}
