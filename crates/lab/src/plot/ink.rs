//! Colours, dashes and markers, and the style sheet that defines them.
//!
//! Six of the eight colours are taken from the palette of Okabe and Ito (2008) for colour-blind readers. The yellow and
//! the black of this palette are replaced by tones that are visible on a light and on a dark background. Series also
//! differ by dash and marker, so that a plot is readable in print without colour. From the ninth series on, the colours
//! repeat, but with other dashes.

use std::fmt::Write as _;

/// The colours by number: (colour on a light background, colour on a dark background).
const COLOURS: [(&str, &str); 8] = [
    ("#0072b2", "#4da6e0"), // blue
    ("#d55e00", "#ff8a3c"), // vermilion
    ("#009e73", "#2fc79a"), // green
    ("#a8478a", "#e39ac9"), // purple
    ("#c98a00", "#f2b830"), // orange
    ("#3aa0d8", "#9bd6f7"), // sky
    ("#6b5b00", "#d3c65a"), // olive
    ("#333333", "#eeeeee"), // grey
];

/// The dashes, by the number of the series. The number is shifted by one each time the colours repeat.
const DASHES: [&str; 4] = ["", "7 2.5", "2.5 2", "9 2.5 2 2.5"];

/// The styles that are the same on light and on dark backgrounds.
const FRAME: &str = "\
.pl-t{font:12px 'DejaVu Sans',system-ui,sans-serif}\
.pl-h{font-size:15px;font-weight:bold}\
.pl-n{font-size:11px}\
.pl-l{fill:none;stroke-width:1.7;stroke-linejoin:round}\
.pl-m{stroke-width:1.3}\
.pl-x{fill:none;stroke-width:2.6}\
.pl-lim{fill:none;stroke-width:1.6;stroke-dasharray:4 4}";

/// The number of the colour of a series.
pub(super) fn colour(ink: usize) -> usize {
    ink % COLOURS.len()
}

/// The dash of a series. A long line is solid unless its colour is repeated, because dashes in a noisy line look like
/// gaps.
pub(super) fn dash(ink: usize, long: bool) -> &'static str {
    let round = ink / COLOURS.len();
    if long { DASHES[round % DASHES.len()] } else { DASHES[(ink + round) % DASHES.len()] }
}

/// The opacity of a bar: lower for repeated colours.
pub(super) fn bar_opacity(ink: usize) -> f64 {
    if ink < COLOURS.len() { 1.0 } else { 0.5 }
}

/// The path of a series' marker at a point. No series uses a cross, because crosses mark stalls.
pub(super) fn marker(ink: usize, x: f64, y: f64) -> String {
    let r = 3.6;
    match ink % 6 {
        0 => format!("M{:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", x - r, d = 2.0 * r),
        1 => format!("M{:.1} {:.1}h6.4v6.4h-6.4z", x - 3.2, y - 3.2),
        2 => format!("M{x:.1} {:.1}l4 7h-8z", y - 4.5),
        3 => format!("M{x:.1} {:.1}l4.4 4.4l-4.4 4.4l-4.4 -4.4z", y - 4.4),
        4 => format!("M{x:.1} {:.1}l4 -7h-8z", y + 4.5),
        _ => format!("M{:.1} {:.1}h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z", x - 1.6, y - 4.8),
    }
}

/// The path of the cross that marks a point. The cross is smaller if a plot has many crosses.
pub(super) fn cross(x: f64, y: f64, many: bool) -> String {
    let r = if many { 2.8 } else { 4.5 };
    format!("M{:.1} {:.1}l{d} {d}m0 -{d}l-{d} {d}", x - r, y - r, d = 2.0 * r)
}

/// The style sheet of plots. Plots have a dark background if the reader's browser prefers dark pages. Otherwise, and in
/// print, they have a light background.
///
/// A page whose plots are drawn by [`super::Plot::inline_svg`] must contain this style sheet once.
pub fn css() -> String {
    format!("{}@media screen and (prefers-color-scheme: dark){{{}}}", light_css(), tones(true))
}

pub(super) fn light_css() -> String {
    format!("{FRAME}{}", tones(false))
}

fn tones(dark: bool) -> String {
    let (paper, text, grid, soft) =
        if dark { ("#14181d", "#e6e6e6", "#333b45", "#a8b0ba") } else { ("#ffffff", "#1a1a1a", "#e2e5e9", "#5a6370") };
    let mut css = format!(
        ".pl-bg{{fill:{paper}}}.pl-t{{fill:{text}}}.pl-n{{fill:{soft}}}.pl-g{{stroke:{grid}}}.pl-a{{stroke:{soft}}}\
         .pl-lim{{stroke:{text}}}.pl-m,.pl-b{{stroke:{paper}}}"
    );
    for (i, (light_tone, dark_tone)) in COLOURS.iter().enumerate() {
        let tone = if dark { dark_tone } else { light_tone };
        let _ = write!(css, ".pl-s{i}{{stroke:{tone}}}.pl-f{i}{{fill:{tone}}}");
    }
    css
}
