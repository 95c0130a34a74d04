//! The chart of an area as SVG: bars for the headline comparisons, lines for figures over sizes.
//!
//! All scales are logarithmic: a factor of ten has the same length everywhere.

use std::fmt::Write as _;

use crate::{Line, Part, Row, Series, duration, figure};

const WIDTH: f64 = 860.0;
const LABEL: f64 = 320.0;
const VALUE: f64 = 90.0;
const BAR: f64 = 16.0;
const GAP: f64 = 4.0;
const TITLE: f64 = 26.0;

/// The width of a plot of growth; two fit side by side.
const PLOT_WIDTH: f64 = WIDTH / 2.0;
const PLOT_TOP: f64 = 34.0;
const PLOT_HEIGHT: f64 = 150.0;
const KEY_LINE: f64 = 15.0;

const TEXT: &str = "#1f2328";
const QUIET: &str = "#57606a";

/// Draws the headline comparisons of `lines` (all comparisons, if there is no headline) and every
/// growth.
pub fn draw(heading: &str, lines: &[&Line]) -> String {
    let comparisons = |only_headlines: bool| {
        lines.iter().filter_map(move |line| match line {
            Line::Comparison {
                name,
                rows,
                headline,
                ..
            } if *headline || !only_headlines => Some((name.as_str(), rows.as_slice())),
            _ => None,
        })
    };
    let mut groups: Vec<(&str, &[Row])> = comparisons(true).collect();
    if groups.is_empty() {
        groups = comparisons(false).collect();
    }
    let mut body = String::new();
    let mut y = 40.0;
    if !groups.is_empty() {
        y = bars(&mut body, y, &groups);
    }
    let mut column = 0.0;
    let mut tallest: f64 = 0.0;
    for line in lines {
        let Line::Growth {
            name,
            axis,
            unit,
            series,
            ..
        } = line
        else {
            continue;
        };
        let _ = write!(
            body,
            r##"<g transform="translate({:.0} {y:.0})">"##,
            column * PLOT_WIDTH
        );
        let height = plot(&mut body, &format!("{name}, by {axis}"), unit, series);
        body.push_str("</g>");
        tallest = tallest.max(height);
        column += 1.0;
        if column == 2.0 {
            y += tallest;
            (column, tallest) = (0.0, 0.0);
        }
    }
    y += tallest;
    format!(
        concat!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h:.0}" "##,
            r##"font-family="system-ui, sans-serif" font-size="12">"##,
            // A white background, so that the chart is readable on a dark page.
            r##"<rect x="0.5" y="0.5" width="{cw}" height="{ch:.0}" rx="6" fill="#ffffff" stroke="#d0d7de"/>"##,
            r##"<text x="16" y="26" font-size="16" font-weight="600" fill="{colour}">{heading}</text>"##,
            "{body}</svg>\n",
        ),
        w = WIDTH,
        h = y + 12.0,
        cw = WIDTH - 1.0,
        ch = y + 11.0,
        colour = TEXT,
        heading = escape(heading),
        body = body,
    )
}

/// Draws a group of bars for each comparison. Returns the position below them.
fn bars(svg: &mut String, top: f64, groups: &[(&str, &[Row])]) -> f64 {
    let times = || {
        groups
            .iter()
            .flat_map(|(_, rows)| rows.iter().map(|row| row.median_ns))
            .filter(|&ns| ns > 0.0)
    };
    // The scale starts at the power of ten below the fastest time, so that no bar has length 0.
    let low = times().fold(f64::INFINITY, f64::min).log10().floor();
    let high = times().fold(f64::NEG_INFINITY, f64::max).log10();
    let span = (high - low).max(1.0);
    let room = WIDTH - LABEL - VALUE;
    let _ = write!(
        svg,
        r##"<text x="16" y="{}" fill="{QUIET}">median time, logarithmic scale; shorter is better; blue: ours, grey: raw floor, yellow: peers</text>"##,
        top + 6.0,
    );
    let mut y = top + 14.0;
    for (name, rows) in groups {
        y += TITLE;
        let _ = write!(
            svg,
            r##"<text x="16" y="{y}" font-weight="600" fill="{TEXT}">{}</text>"##,
            escape(name),
        );
        y += 8.0;
        for row in *rows {
            let length = ((row.median_ns.max(1e-3).log10() - low) / span * room).max(1.0);
            let _ = write!(
                svg,
                concat!(
                    r##"<text x="{lx}" y="{ty}" text-anchor="end" fill="{quiet}">{name}</text>"##,
                    r##"<rect x="{bx}" y="{y}" width="{length:.1}" height="{bar}" rx="2" fill="{colour}"/>"##,
                    r##"<text x="{vx:.1}" y="{ty}" fill="{text}">{value}</text>"##,
                ),
                lx = LABEL - 10.0,
                ty = y + BAR - 4.0,
                name = escape(&shortened(&row.name)),
                bx = LABEL,
                y = y,
                length = length,
                bar = BAR,
                colour = bar_colour(row.part),
                vx = LABEL + length + 6.0,
                value = duration(row.median_ns),
                quiet = QUIET,
                text = TEXT,
            );
            y += BAR + GAP;
        }
    }
    y + 16.0
}

/// Draws the lines of one growth in a plot of [`PLOT_WIDTH`]. Returns its height.
fn plot(svg: &mut String, title: &str, unit: &str, series: &[Series]) -> f64 {
    // The legend is below the plot, so that the axes of two plots in a row are aligned.
    let (left, right) = (76.0, PLOT_WIDTH - 28.0);
    let (top, bottom) = (PLOT_TOP, PLOT_TOP + PLOT_HEIGHT);
    let key = bottom + 26.0;
    let height = key + KEY_LINE * series.len() as f64 + 24.0;
    let all = series;
    let points = || all.iter().flat_map(|series| &series.points);
    // Zero has no logarithm and is drawn at the bottom.
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
    };
    let (from, to) = range(&mut points().map(|point| point.0));
    let (low, high) = range(&mut points().map(|point| point.1));
    let _ = write!(
        svg,
        r##"<text x="16" y="14" font-weight="600" fill="{TEXT}">{}</text>"##,
        escape(title),
    );
    if low > high || from > to {
        return height;
    }
    let (floor, ceiling) = (low.log10().floor(), high.log10().ceil());
    let ceiling = ceiling.max(floor + 1.0);
    let x = |size: f64| {
        let share = (size / from).ln() / (to / from).ln().max(1e-9);
        left + share * (right - left)
    };
    let y = |value: f64| {
        let share = (value.max(low).log10() - floor) / (ceiling - floor);
        bottom - share * (bottom - top)
    };
    let mut power = floor;
    while power <= ceiling {
        let (value, at) = (10f64.powf(power), y(10f64.powf(power).max(low)));
        let at = if power == floor { bottom } else { at };
        let _ = write!(
            svg,
            concat!(
                r##"<line x1="{left}" x2="{right}" y1="{at:.1}" y2="{at:.1}" stroke="#d8dee4"/>"##,
                r##"<text x="{tx}" y="{ty:.1}" text-anchor="end" fill="{quiet}" font-size="10">{value}</text>"##,
            ),
            left = left,
            right = right,
            at = at,
            tx = left - 6.0,
            ty = at + 3.0,
            quiet = QUIET,
            value = figure(value, unit),
        );
        power += 1.0;
    }
    let mut sizes: Vec<f64> = points().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    for size in sizes {
        let _ = write!(
            svg,
            r##"<text x="{:.1}" y="{}" text-anchor="middle" fill="{QUIET}" font-size="10">{}</text>"##,
            x(size),
            bottom + 14.0,
            figure(size, ""),
        );
    }
    for (i, series) in series.iter().enumerate() {
        let before = all[..i].iter().filter(|other| other.part == series.part);
        let colour = line_colour(series.part, before.count());
        let (mut path, mut dots) = (Vec::new(), String::new());
        for &(size, value) in &series.points {
            let (x, y) = (x(size), y(value));
            path.push(format!("{x:.1},{y:.1}"));
            let _ = write!(
                dots,
                r##"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{colour}"/>"##
            );
        }
        let _ = write!(
            svg,
            concat!(
                r##"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>"##,
                "{dots}",
                r##"<rect x="16" y="{ky}" width="14" height="4" fill="{colour}"/>"##,
                r##"<text x="36" y="{ty}" fill="{quiet}" font-size="11">{name}</text>"##,
            ),
            points = path.join(" "),
            dots = dots,
            colour = colour,
            width = if series.part == Part::Ours { 3.0 } else { 1.5 },
            ky = key + KEY_LINE * i as f64,
            ty = key + 6.0 + KEY_LINE * i as f64,
            quiet = QUIET,
            name = escape(&series.name),
        );
    }
    height
}

fn bar_colour(part: Part) -> &'static str {
    match part {
        Part::Floor => "#afb8c1",
        Part::Ours => "#0969da",
        Part::Peer => "#d4a72c",
    }
}

/// The colour of a line. Unlike bars, lines of the same part have different colours.
fn line_colour(part: Part, earlier: usize) -> &'static str {
    const OURS: [&str; 4] = ["#0969da", "#0a3069", "#54aeff", "#1b7c83"];
    const PEERS: [&str; 6] = [
        "#d4a72c", "#bc4c00", "#8250df", "#1a7f37", "#bf3989", "#57606a",
    ];
    match part {
        // Darker than a bar, because a thin light line is hard to see.
        Part::Floor => "#8c959f",
        Part::Ours => OURS[earlier % OURS.len()],
        Part::Peer => PEERS[earlier % PEERS.len()],
    }
}

/// The name, shortened to the space beside a bar.
fn shortened(name: &str) -> String {
    const MOST: usize = 50;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    let kept: String = name.chars().take(MOST - 1).collect();
    format!("{}…", kept.trim_end())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(name: &str, headline: bool, times: &[(&str, f64)]) -> Line {
        let rows = times.iter().map(|&(name, median_ns)| Row {
            part: Part::Ours,
            name: name.to_owned(),
            median_ns,
            p99_ns: median_ns,
            samples: 1,
            differs: None,
        });
        Line::Comparison {
            area: "area".to_owned(),
            name: name.to_owned(),
            rows: rows.collect(),
            verdicts: Vec::new(),
            headline,
        }
    }

    #[test]
    fn a_bar_grows_with_the_logarithm_of_its_time() {
        let line = comparison("work", false, &[("a<b", 10.0), ("b", 100.0), ("c", 1000.0)]);
        let svg = draw("area", &[&line]);
        let room = WIDTH - LABEL - VALUE;
        assert!(svg.contains(&format!("width=\"{:.1}\"", room / 2.0)));
        assert!(svg.contains(&format!("width=\"{room:.1}\"")));
        assert!(svg.contains("a&lt;b"));
    }

    #[test]
    fn only_headlines_are_drawn_if_there_are_any() {
        let lines = [
            comparison("shown", true, &[("a", 1.0)]),
            comparison("hidden", false, &[("a", 1.0)]),
        ];
        let svg = draw("area", &lines.each_ref());
        assert!(svg.contains("shown") && !svg.contains("hidden"));
    }

    #[test]
    fn a_line_goes_from_corner_to_corner_when_it_grows_with_the_size() {
        let series = vec![Series {
            part: Part::Ours,
            name: "ours".to_owned(),
            points: vec![(10.0, 10.0), (100.0, 100.0), (1000.0, 1000.0)],
            differs: None,
        }];
        let mut svg = String::new();
        plot(&mut svg, "title", "ns", &series);
        let (top, bottom) = (PLOT_TOP, PLOT_TOP + PLOT_HEIGHT);
        let (left, right) = (76.0, PLOT_WIDTH - 28.0);
        let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
        let points = format!(
            "{left:.1},{bottom:.1} {:.1},{:.1} {right:.1},{top:.1}",
            middle.0, middle.1
        );
        assert!(svg.contains(&points), "{svg}");
    }
}
