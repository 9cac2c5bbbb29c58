//! Plots for the report, the figures of the sources and the theory.
//!
//! ```text
//!   Plot ──thin──▶ few points ──scale──▶ axes ──draw──▶ SVG ──raster──▶ PNG (feature `png`)
//! ```
//!
//! 1. [`thin`]: a long series keeps the lowest and the highest point of every column of pixels.
//! 2. [`scale`]: ranges, ticks and their labels; [`mod@unit`] writes numbers.
//! 3. `draw`: the frame and the series. The legend and the notes are below the frame, so that they do not cover data.
//! 4. `raster`: `resvg` draws the SVG as PNG, with an embedded font.
//!
//! Invariants: the output depends on the plot only. A value that is not finite, or not positive on a logarithmic axis,
//! is a gap and not an error. Thinning never removes a stall. `docs/decisions/0013-plots.md` explains why no plotting
//! crate is used.

use std::path::{Path, PathBuf};

use crate::engine::Result;

mod draw;
mod ink;
#[cfg(feature = "png")]
mod raster;
pub mod scale;
pub mod thin;
pub mod unit;

pub use ink::css;

/// One axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The quantity, such as `latency`.
    pub label: String,
    /// The unit without a prefix: `s`, `B`, `operations/s`, or empty for a bare number. The labels of ticks add a
    /// prefix ([`unit::tick`]).
    pub unit: String,
    /// A logarithmic scale. Values that are not positive become gaps.
    pub log: bool,
    /// Positions with labels, which replace the ticks: categories or percentiles.
    pub names: Vec<(f64, String)>,
    /// Further values that the axis must include. They give several plots the same scale.
    pub include: Vec<f64>,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str, unit: &str) -> Axis {
        Axis { label: label.to_owned(), unit: unit.to_owned(), ..Axis::default() }
    }

    /// A logarithmic axis.
    pub fn log(label: &str, unit: &str) -> Axis {
        Axis { log: true, ..Axis::linear(label, unit) }
    }

    /// An axis of names, at 0, 1, 2, ….
    pub fn named<S: Into<String>>(label: &str, names: impl IntoIterator<Item = S>) -> Axis {
        let names = names.into_iter().enumerate().map(|(i, name)| (i as f64, name.into())).collect();
        Axis { names, ..Axis::linear(label, "") }
    }

    /// The label of the axis, such as `latency (s)`.
    pub fn title(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{} ({})", self.label, self.unit) }
    }
}

/// The style of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Points joined by a line. A gap in the data breaks the line.
    #[default]
    Line,
    /// Markers only.
    Points,
    /// A value that holds until the next point.
    Steps,
    /// Bars from zero. Bars of several series at the same x are stacked in the order of the series.
    Bars,
    /// A neutral dashed line, for a limit, a budget or a bound.
    Limit,
}

/// One series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The name of the series in the legend.
    pub name: String,
    /// The points, in the order of x.
    pub points: Vec<(f64, f64)>,
    /// The style in which the points are drawn.
    pub style: Style,
    /// Points that are marked with a cross in the colour of the series: stalls, crossings.
    pub marks: Vec<(f64, f64)>,
    /// The number of the colour, marker and dash. With `None`, this is the index of the series in the plot. Set this
    /// number to draw an engine in the same way in several plots.
    pub ink: Option<usize>,
}

impl Series {
    /// A series without marks.
    pub fn new(name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, style, ..Series::default() }
    }

    /// The same series with a fixed number of the colour, marker and dash.
    #[must_use]
    pub fn with_ink(mut self, ink: usize) -> Series {
        self.ink = Some(ink);
        self
    }
}

/// A plot.
///
/// ```
/// use pandodb_lab::plot::{Axis, Plot, Series, Style};
///
/// let points = (1..=100).map(|n| (f64::from(n), f64::from(n).sqrt() * 1e-6)).collect();
/// let plot = Plot::new("Lookups", Axis::linear("records", ""), Axis::log("latency", "s"))
///     .with(Series::new("measured", Style::Line, points))
///     .note("one thread");
/// assert!(plot.svg().contains("latency (s)"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// The title, which is one line.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis. A linear vertical axis includes zero.
    pub y: Axis,
    /// The series. The first series is drawn last, on top of the others.
    pub series: Vec<Series>,
    /// Sentences below the plot.
    pub notes: Vec<String>,
}

impl Plot {
    /// An empty plot.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Plot {
        Plot { title: title.into(), x, y, series: Vec::new(), notes: Vec::new() }
    }

    /// The plot with one more series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
    }

    /// The plot with one more note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Plot {
        self.notes.push(note.into());
        self
    }

    /// Whether the plot would show any point.
    pub fn has_data(&self) -> bool {
        let visible = |&(x, y): &(f64, f64)| scale::visible(x, &self.x) && scale::visible(y, &self.y);
        self.series.iter().any(|series| series.style != Style::Limit && series.points.iter().any(visible))
    }

    /// A complete SVG document. It has its own style sheet for light and for dark backgrounds.
    pub fn svg(&self) -> String {
        draw::draw(self, &format!("<style>{}</style>", css()))
    }

    /// An SVG element for use in a page. The page must contain [`css`] once.
    pub fn inline_svg(&self) -> String {
        draw::draw(self, "")
    }

    /// A PNG image in light colours, at twice the size of the SVG.
    ///
    /// # Errors
    /// If the image cannot be encoded.
    #[cfg(feature = "png")]
    pub fn png(&self) -> Result<Vec<u8>> {
        raster::png(&draw::draw(self, &format!("<style>{}</style>", ink::light_css())))
    }

    /// Writes the plot as `name.svg` or `name.png` into `directory`, which is created if it does not exist. Returns the
    /// path of the file.
    ///
    /// # Errors
    /// If the image cannot be encoded, or the directory or the file cannot be written. The error names the path.
    pub fn write(&self, directory: &Path, name: &str, format: ImageFormat) -> Result<PathBuf> {
        std::fs::create_dir_all(directory).map_err(|e| format!("cannot create {}: {e}", directory.display()))?;
        let path = directory.join(format!("{name}.{}", format.extension()));
        let image = match format {
            ImageFormat::Svg => self.svg().into_bytes(),
            #[cfg(feature = "png")]
            ImageFormat::Png => self.png()?,
        };
        std::fs::write(&path, image).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(path)
    }
}

/// The format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// The SVG document of [`Plot::svg`].
    Svg,
    /// The PNG image of [`Plot::png`], which needs the feature `png`.
    #[cfg(feature = "png")]
    Png,
}

impl ImageFormat {
    /// The formats that this build can write.
    pub const ALL: &[ImageFormat] = &[
        ImageFormat::Svg,
        #[cfg(feature = "png")]
        ImageFormat::Png,
    ];

    /// The extension of the file name.
    pub fn extension(self) -> &'static str {
        match self {
            ImageFormat::Svg => "svg",
            #[cfg(feature = "png")]
            ImageFormat::Png => "png",
        }
    }
}

/// Escapes `text` for use inside an element or a quoted attribute of HTML or SVG. Control characters become spaces,
/// because XML forbids them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
