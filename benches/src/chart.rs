//! A chart of an area's comparisons as SVG: one group of bars a comparison, all on one
//! logarithmic scale, so that a factor of ten is the same length everywhere.

use std::fmt::Write as _;

use crate::{Part, Row, duration};

const WIDTH: f64 = 860.0;
const LABEL: f64 = 320.0;
const VALUE: f64 = 90.0;
const BAR: f64 = 16.0;
const GAP: f64 = 4.0;
const TITLE: f64 = 26.0;

/// Draws `groups`, each a comparison's name with its rows.
pub fn bars(heading: &str, groups: &[(&str, &[Row])]) -> String {
    let times = || {
        groups
            .iter()
            .flat_map(|(_, rows)| rows.iter().map(|row| row.median_ns))
            .filter(|&ns| ns > 0.0)
    };
    // The scale begins at the power of ten below the fastest, so that no bar has length 0.
    let low = times().fold(f64::INFINITY, f64::min).log10().floor();
    let high = times().fold(f64::NEG_INFINITY, f64::max).log10();
    let span = (high - low).max(1.0);
    let room = WIDTH - LABEL - VALUE;
    let rows: usize = groups.iter().map(|(_, rows)| rows.len()).sum();
    let height = 64.0 + groups.len() as f64 * (TITLE + 8.0) + rows as f64 * (BAR + GAP);

    let mut svg = format!(
        concat!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" "##,
            r##"font-family="system-ui, sans-serif" font-size="12">"##,
            r##"<rect width="{w}" height="{h}" fill="#ffffff"/>"##,
            r##"<text x="16" y="26" font-size="16" font-weight="600" fill="#1f2328">{heading}</text>"##,
            r##"<text x="16" y="46" fill="#57606a">median time, logarithmic: shorter is better</text>"##,
        ),
        w = WIDTH,
        h = height,
        heading = escape(heading),
    );
    let mut y = 58.0;
    for (name, rows) in groups {
        y += TITLE;
        let _ = write!(
            svg,
            r##"<text x="16" y="{y}" font-weight="600" fill="#1f2328">{}</text>"##,
            escape(name),
        );
        y += 8.0;
        for row in *rows {
            let length = ((row.median_ns.max(1e-3).log10() - low) / span * room).max(1.0);
            let baseline = y + BAR - 4.0;
            let _ = write!(
                svg,
                concat!(
                    r##"<text x="{lx}" y="{ty}" text-anchor="end" fill="#57606a">{name}</text>"##,
                    r##"<rect x="{bx}" y="{y}" width="{length:.1}" height="{bar}" rx="2" fill="{colour}"/>"##,
                    r##"<text x="{vx:.1}" y="{ty}" fill="#1f2328">{value}</text>"##,
                ),
                lx = LABEL - 10.0,
                ty = baseline,
                name = escape(&row.name),
                bx = LABEL,
                y = y,
                length = length,
                bar = BAR,
                colour = colour(row.part),
                vx = LABEL + length + 6.0,
                value = duration(row.median_ns),
            );
            y += BAR + GAP;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn colour(part: Part) -> &'static str {
    match part {
        Part::Floor => "#afb8c1",
        Part::Ours => "#0969da",
        Part::Peer => "#d4a72c",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_with_the_logarithm_of_its_time() {
        let row = |name: &str, median_ns| Row {
            part: Part::Ours,
            name: name.to_owned(),
            median_ns,
            p99_ns: median_ns,
            samples: 1,
        };
        let rows = [row("a<b", 10.0), row("b", 100.0), row("c", 1000.0)];
        let svg = bars("area", &[("work", &rows)]);
        let room = WIDTH - LABEL - VALUE;
        assert!(svg.contains(&format!("width=\"{:.1}\"", room / 2.0)));
        assert!(svg.contains(&format!("width=\"{room:.1}\"")));
        assert!(svg.contains("a&lt;b"));
    }
}
