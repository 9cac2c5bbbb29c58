//! The SVG of a plot.
//!
//! ```text
//!   title
//!   label of y
//!   ┌───────────────┐
//!   │ grid, series  │
//!   └───────────────┘
//!    ticks of x, label of x
//!   legend, as many rows as it takes
//!   notes
//! ```
//!
//! The layout uses an upper estimate of the width of each text, because the fonts of the reader's browser are not
//! known.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::scale::{Scale, visible};
use super::thin::thin;
use super::{Plot, Series, Style, escape, ink};

/// The width of every plot, in units of the SVG.
const WIDTH: f64 = 760.0;
/// The height of the area that shows the data.
const FIELD: f64 = 250.0;
const TOP: f64 = 52.0;
const RIGHT: f64 = 22.0;
/// The number of columns to which a long series is thinned. A column is two units of the SVG wide.
const COLUMNS: usize = 330;
/// A series of at most this number of points has a marker at each point. A longer series has a few markers.
const MARKED: usize = 30;
/// A line of more than this number of points is solid, because dashes in a noisy line look like gaps.
const LONG: usize = 120;
/// Marks are drawn smaller if their number is greater than this.
const MANY_MARKS: usize = 20;
/// Upper estimate of the width of a letter with a font size of 12 units.
const LETTER: f64 = 7.2;

/// The state while a plot is drawn.
struct Canvas<'a> {
    plot: &'a Plot,
    x: Scale,
    y: Scale,
    left: f64,
    svg: String,
}

/// Draws a plot; `head` is inserted before all other elements.
pub(super) fn draw(plot: &Plot, head: &str) -> String {
    let x = Scale::across(&plot.x, values(plot, |point| point.0).chain(plot.x.include.iter().copied()), half_bar(plot));
    let tops = stacks(plot).into_iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.top);
    let y = Scale::up(&plot.y, values(plot, |point| point.1).chain(tops).chain(plot.y.include.iter().copied()));
    let widest = y.ticks.iter().map(|tick| width(&tick.1)).fold(0.0, f64::max);
    let mut canvas = Canvas { plot, x, y, left: widest + 22.0, svg: String::new() };
    canvas.frame();
    canvas.bars();
    canvas.base();
    for (i, series) in plot.series.iter().enumerate().rev() {
        canvas.series(series, series.ink.unwrap_or(i));
    }
    if !plot.has_data() {
        let (x, y) = (canvas.left + canvas.across() / 2.0, TOP + FIELD / 2.0);
        canvas.text(x, y, "middle", "pl-t pl-n", "no data");
    }
    let bottom = canvas.x_labels();
    let bottom = canvas.legend(bottom);
    let bottom = canvas.notes(bottom);
    let title = escape(&plot.title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pl\" width=\"{WIDTH}\" height=\"{bottom:.0}\" \
         viewBox=\"0 0 {WIDTH} {bottom:.0}\" role=\"img\" aria-label=\"{title}\">{head}\
         <rect class=\"pl-bg\" width=\"{WIDTH}\" height=\"{bottom:.0}\"/>\n{}</svg>\n",
        canvas.svg
    )
}

impl Canvas<'_> {
    fn across(&self) -> f64 {
        WIDTH - RIGHT - self.left
    }

    fn at_x(&self, value: f64) -> f64 {
        self.left + self.x.place(value) * self.across()
    }

    fn at_y(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.place(value)) * FIELD
    }

    fn place(&self, point: (f64, f64)) -> Option<(f64, f64)> {
        let seen = visible(point.0, &self.plot.x) && visible(point.1, &self.plot.y);
        seen.then(|| (self.at_x(point.0), self.at_y(point.1)))
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.svg,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// Draws the title, the label and the ticks of the y axis, and the grid.
    fn frame(&mut self) {
        let (left, right, base) = (self.left, WIDTH - RIGHT, TOP + FIELD);
        self.text(12.0, 20.0, "start", "pl-t pl-h", &self.plot.title);
        self.text(12.0, 41.0, "start", "pl-t pl-n", &format!("↑ {}", self.plot.y.title()));
        let mut grid = String::new();
        for (value, label) in self.y.ticks.clone() {
            let y = self.at_y(value);
            let _ = write!(grid, "M{left:.1} {y:.1}H{right:.1}");
            self.text(left - 7.0, y + 4.0, "end", "pl-t", &label);
        }
        if self.plot.x.names.is_empty() {
            for (value, _) in &self.x.ticks {
                let _ = write!(grid, "M{:.1} {TOP}V{base}", self.at_x(*value));
            }
        }
        let _ = writeln!(self.svg, "<path class=\"pl-g\" d=\"{grid}\"/>");
    }

    /// Draws the vertical axis, and the base line of bars.
    fn base(&mut self) {
        let (left, right, base) = (self.left, WIDTH - RIGHT, TOP + FIELD);
        let zero = if self.y.low < 0.0 && self.y.high > 0.0 { self.at_y(0.0) } else { base };
        let _ =
            writeln!(self.svg, "<path class=\"pl-a\" d=\"M{left:.1} {TOP}V{base}M{left:.1} {zero:.1}H{right:.1}\"/>");
    }

    /// Draws all bars, stacked.
    fn bars(&mut self) {
        let half = half_bar(self.plot) * 0.66;
        for (x, pieces) in stacks(self.plot) {
            for piece in pieces {
                let (left, right) = (self.at_x(x - half), self.at_x(x + half));
                let ends = [piece.base, piece.top].map(|end| if self.plot.y.log { end.max(self.y.low) } else { end });
                let (top, bottom) = (self.at_y(ends[0].max(ends[1])), self.at_y(ends[0].min(ends[1])));
                let _ = writeln!(
                    self.svg,
                    "<rect class=\"pl-b pl-f{}\" fill-opacity=\"{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"><title>{}</title></rect>",
                    ink::colour(piece.ink),
                    ink::bar_opacity(piece.ink),
                    right - left,
                    bottom - top,
                    escape(piece.name)
                );
            }
        }
    }

    fn series(&mut self, series: &Series, ink: usize) {
        if series.style == Style::Bars {
            return;
        }
        let points = thin(&series.points, COLUMNS);
        let placed: Vec<Option<(f64, f64)>> = points.iter().map(|point| self.place(*point)).collect();
        let colour = ink::colour(ink);
        let _ = writeln!(self.svg, "<g><title>{}</title>", escape(&series.name));
        if series.style != Style::Points {
            let line = path(&placed, series.style == Style::Steps);
            let class = if series.style == Style::Limit { "pl-lim".to_owned() } else { format!("pl-l pl-s{colour}") };
            let _ = writeln!(self.svg, "<path class=\"{class}\"{} d=\"{line}\"/>", dashes(series, ink));
        }
        if series.style != Style::Limit {
            let markers: String =
                spots(series, &placed, ink).into_iter().map(|(x, y)| ink::marker(ink, x, y)).collect();
            let _ = writeln!(self.svg, "<path class=\"pl-m pl-f{colour}\" d=\"{markers}\"/>");
        }
        let many = series.marks.len() > MANY_MARKS;
        let marks = series.marks.iter().filter_map(|point| self.place(*point));
        let marks: String = marks.map(|(x, y)| ink::cross(x, y, many)).collect();
        if !marks.is_empty() {
            let _ = writeln!(self.svg, "<path class=\"pl-x pl-s{colour}\" d=\"{marks}\"/>");
        }
        self.svg.push_str("</g>\n");
    }

    /// Draws the ticks and the label of the x axis. Slants names that would overlap. Returns the y coordinate of the
    /// lower end.
    fn x_labels(&mut self) -> f64 {
        let base = TOP + FIELD;
        let ticks = self.x.ticks.clone();
        let slot = self.across() / ticks.len().max(1) as f64;
        let widest = ticks.iter().map(|tick| width(&tick.1)).fold(0.0, f64::max);
        let slanted = widest > slot && !self.plot.x.names.is_empty();
        for (value, label) in &ticks {
            let x = self.at_x(*value);
            if slanted {
                let (x, y, label) = (x + 6.0, base + 15.0, escape(label));
                let _ = writeln!(
                    self.svg,
                    "<text class=\"pl-t\" text-anchor=\"end\" transform=\"translate({x:.1} {y:.1}) rotate(-28)\">{label}</text>"
                );
            } else {
                self.text(x, base + 18.0, "middle", "pl-t", label);
            }
        }
        let below = base + if slanted { 22.0 + widest * 0.47 } else { 22.0 };
        let label = self.plot.x.title();
        if label.is_empty() {
            return below;
        }
        self.text(WIDTH - RIGHT, below + 14.0, "end", "pl-t pl-n", &format!("{label} →"));
        below + 18.0
    }

    /// Draws the legend in rows below the plot. Returns the y coordinate of the lower end.
    fn legend(&mut self, top: f64) -> f64 {
        let (mut x, mut y) = (12.0, top + 14.0);
        for (i, series) in self.plot.series.iter().enumerate() {
            let ink = series.ink.unwrap_or(i);
            let wide = 34.0 + width(&series.name) + 16.0;
            if x > 12.0 && x + wide > WIDTH - 8.0 {
                (x, y) = (12.0, y + 19.0);
            }
            self.sample(series, ink, x, y - 4.0);
            self.text(x + 34.0, y, "start", "pl-t", &series.name);
            x += wide;
        }
        if self.plot.series.is_empty() { top } else { y + 6.0 }
    }

    /// Draws the sample of a series in the legend.
    fn sample(&mut self, series: &Series, ink: usize, x: f64, y: f64) {
        let colour = ink::colour(ink);
        let svg = &mut self.svg;
        let line = format!("M{x:.1} {y:.1}h28");
        let _ = match series.style {
            Style::Bars => {
                let opacity = ink::bar_opacity(ink);
                writeln!(
                    svg,
                    "<rect class=\"pl-f{colour}\" fill-opacity=\"{opacity}\" x=\"{:.1}\" y=\"{:.1}\" width=\"16\" \
                     height=\"11\"/>",
                    x + 10.0,
                    y - 5.5
                )
            }
            Style::Limit => writeln!(svg, "<path class=\"pl-lim\" d=\"{line}\"/>"),
            Style::Points => {
                writeln!(svg, "<path class=\"pl-m pl-f{colour}\" d=\"{}\"/>", ink::marker(ink, x + 14.0, y))
            }
            Style::Line | Style::Steps => writeln!(
                svg,
                "<path class=\"pl-l pl-s{colour}\"{} d=\"{line}\"/><path class=\"pl-m pl-f{colour}\" d=\"{}\"/>",
                dashes(series, ink),
                ink::marker(ink, x + 14.0, y)
            ),
        };
    }

    /// Draws the notes, wrapped. Returns the y coordinate of the lower end.
    fn notes(&mut self, top: f64) -> f64 {
        let mut y = top + 4.0;
        for line in self.plot.notes.iter().flat_map(|note| wrapped(note, ((WIDTH - 30.0) / (LETTER * 0.92)) as usize)) {
            y += 15.0;
            self.text(12.0, y, "start", "pl-t pl-n", &line);
        }
        y + 10.0
    }
}

/// Draws one bar of a stack.
struct Piece<'a> {
    base: f64,
    top: f64,
    ink: usize,
    name: &'a str,
}

/// The bars, grouped by x. Positive values are stacked upwards from zero, negative values downwards.
fn stacks(plot: &Plot) -> Vec<(f64, Vec<Piece<'_>>)> {
    let mut stacks: BTreeMap<i64, (f64, Vec<Piece<'_>>, [f64; 2])> = BTreeMap::new();
    for (i, series) in plot.series.iter().enumerate().filter(|(_, series)| series.style == Style::Bars) {
        for &(x, y) in series.points.iter().filter(|(x, y)| visible(*x, &plot.x) && y.abs() < 1e200) {
            let stack = stacks.entry((x * 1e6) as i64).or_insert((x, Vec::new(), [0.0; 2]));
            let base = stack.2[usize::from(y < 0.0)];
            stack.2[usize::from(y < 0.0)] += y;
            stack.1.push(Piece { base, top: base + y, ink: series.ink.unwrap_or(i), name: &series.name });
        }
    }
    stacks.into_values().map(|(x, pieces, _)| (x, pieces)).collect()
}

/// Half of the distance between neighbouring bars; 0 if the plot has no bars.
fn half_bar(plot: &Plot) -> f64 {
    let bars = plot.series.iter().filter(|series| series.style == Style::Bars);
    let mut places: Vec<f64> =
        bars.flat_map(|series| series.points.iter().map(|point| point.0)).filter(|x| visible(*x, &plot.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let gaps = places.windows(2).map(|pair| pair[1] - pair[0]);
    let least = gaps.fold(f64::MAX, f64::min);
    if places.is_empty() {
        0.0
    } else if least == f64::MAX {
        0.5
    } else {
        least / 2.0
    }
}

/// All values of one coordinate (x or y).
fn values(plot: &Plot, of: fn(&(f64, f64)) -> f64) -> impl Iterator<Item = f64> + '_ {
    plot.series.iter().flat_map(|series| series.points.iter().chain(&series.marks)).map(of)
}

/// The path of the line through the points. A gap breaks the line, and an isolated point becomes a dot.
fn path(points: &[Option<(f64, f64)>], steps: bool) -> String {
    let mut path = String::new();
    let mut before: Option<(f64, f64)> = None;
    for point in points {
        if let Some((x, y)) = *point {
            let _ = match before {
                None => write!(path, "M{x:.1} {y:.1}h0.1"),
                Some(_) if steps => write!(path, "H{x:.1}V{y:.1}"),
                Some(_) => write!(path, "L{x:.1} {y:.1}"),
            };
        }
        before = *point;
    }
    path
}

/// The positions of the markers of a series. A short series has a marker at every point. A longer series has markers at
/// a few points, which depend on the number of the series, so that markers of several series do not coincide.
fn spots(series: &Series, placed: &[Option<(f64, f64)>], ink: usize) -> Vec<(f64, f64)> {
    if series.style == Style::Points || placed.len() <= MARKED {
        return placed.iter().flatten().copied().collect();
    }
    let every = placed.len() / 6;
    let first = every * (1 + ink % 8) / 9;
    placed.iter().skip(first).step_by(every.max(1)).flatten().copied().collect()
}

fn dashes(series: &Series, ink: usize) -> String {
    let long = series.points.len() > LONG;
    let dash = if series.style == Style::Limit { "" } else { ink::dash(ink, long) };
    if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") }
}

/// Estimated width of a text with a font size of 12 units.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// Splits text between words into lines of at most `most` letters. A longer word gets a line of its own.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > most {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}
