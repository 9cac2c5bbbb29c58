//! Checks the structure of plots (titles, units, legends, gaps, stacks), and that every plot can be written as an
//! image.

use pandodb_lab::plot::{Axis, Plot, Series, Style};

fn plot(series: Vec<Series>) -> Plot {
    let plot = Plot::new("A title", Axis::linear("time", "s"), Axis::linear("rate", "operations/s"));
    Plot { series, ..plot }
}

#[test]
fn a_plot_has_title_units_legend_and_notes() {
    let points = (0..100).map(|i| (f64::from(i), 5e4)).collect();
    let svg = plot(vec![Series::new("one & two", Style::Line, points)]).note("A note.").svg();
    for expected in
        ["A title", "time (s)", "rate (operations/s)", "one &amp; two", "A note.", "10 k</text>", "20 s</text>"]
    {
        assert!(svg.contains(expected), "`{expected}` is missing");
    }
    assert!(svg.contains("prefers-color-scheme: dark"), "a standalone document has a style sheet");
}

#[test]
fn inline_plots_have_no_style_sheet() {
    assert!(!plot(vec![]).inline_svg().contains("<style"));
}

#[test]
fn sixteen_series_have_different_styles() {
    let series =
        (0..16).map(|i| Series::new(format!("series {i}"), Style::Line, vec![(0.0, 1.0), (1.0, f64::from(i))]));
    let svg = plot(series.collect()).svg();
    let looks: std::collections::BTreeSet<&str> =
        svg.split("<path class=\"pl-l ").skip(1).filter_map(|path| path.split(" d=").next()).collect();
    assert_eq!(looks.len(), 16, "the combinations of colour and dash of 16 series differ: {looks:?}");
}

#[test]
fn a_gap_breaks_the_line() {
    let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 2.0)];
    let svg = plot(vec![Series::new("s", Style::Line, points)]).svg();
    let line = svg.split("class=\"pl-l pl-s0\" d=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a line");
    assert_eq!(line.matches('M').count(), 2, "{line}");
    assert!(!svg.contains("NaN"));
}

#[test]
fn bars_are_stacked() {
    let bars = |name, a, b| Series::new(name, Style::Bars, vec![(0.0, a), (1.0, b)]);
    let mut stacked = plot(vec![bars("log", 10.0, 20.0), bars("flush", 30.0, 0.0)]);
    stacked.x = Axis::named("engine", ["redb", "sled"]);
    let svg = stacked.svg();
    assert_eq!(svg.matches("<rect class=\"pl-b ").count(), 4);
    assert!(svg.contains("redb</text>") && svg.contains("40</text>"), "the axis includes the sum");
}

#[test]
fn odd_values_can_be_drawn() {
    let odd = vec![(f64::NAN, 1.0), (0.0, 0.0), (f64::INFINITY, 2.0), (1.0, -5.0), (1.0, 1e308)];
    for style in [Style::Line, Style::Points, Style::Steps, Style::Bars, Style::Limit] {
        for points in [vec![], vec![(0.0, 0.0)], odd.clone(), vec![(5.0, 5.0); 3]] {
            for y in [Axis::linear("y", "B"), Axis::log("y", "s")] {
                let plot = Plot { y, ..plot(vec![Series::new("s", style, points.clone())]) };
                let svg = plot.svg();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{style:?} {points:?}: {svg}");
                #[cfg(feature = "png")]
                assert!(plot.png().expect("an image").starts_with(b"\x89PNG"));
            }
        }
    }
    assert!(plot(vec![]).svg().contains("no data"));
}
