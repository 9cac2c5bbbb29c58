//! The HTML page: the summary, the rates, and a section for each case with latencies, costs and plots.

use std::fmt::Write as _;

use super::group::{Case, Sheet, asked_fields};
use super::{charts, summary, tables, transactions};
use crate::plot::{self, escape};

/// The style sheet of the page, without the style sheet of the plots.
const STYLE: &str = include_str!("page.css");

/// The explanation below each table of latencies.
const IDLE_THREAD: &str = "<p class=\"soft\">Idle thread: beside the workload a thread did nothing but sleep for a \
millisecond at a time; this is by how much its longest sleep was too long. A delay of that size comes from the machine.</p>\n";

/// Builds the whole report.
pub(super) fn page(sheet: &Sheet) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>PandoDB: measured</title>\n<style>\n{STYLE}{}\n</style>\n</head>\n<body>\n<h1>PandoDB: measured</h1>\n",
        plot::css()
    );
    if sheet.lines.is_empty() {
        html.push_str("<p>There are no figures.</p>\n");
    } else {
        html += &overview(sheet);
        for case in &sheet.cases {
            html += &section(sheet, case);
        }
    }
    html + "</body>\n</html>\n"
}

fn overview(sheet: &Sheet) -> String {
    let mut html =
        list("alarm", "Wrong answers: the other figures of these engines are not valid.", &summary::wrong(sheet));
    html.push_str("<dl>\n");
    for (name, value) in summary::facts(sheet) {
        let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&value));
    }
    html.push_str("</dl>\n");
    html += &list("doubt", "Compare with care:", &summary::doubts(sheet));
    if !sheet.cases.is_empty() {
        html += &tables::rates(sheet).html();
    }
    html += &summary::refusals(sheet).map_or(String::new(), |table| table.html());
    html += &summary::configuration(sheet).map_or(String::new(), |table| table.html());
    html
}

/// Builds a box with sentences; empty text if there are no sentences.
fn list(class: &str, lead: &str, sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let items: String = sentences.iter().map(|sentence| format!("<li>{}</li>", escape(sentence))).collect();
    format!("<div class=\"{class}\">{}<ul>{items}</ul></div>\n", escape(lead))
}

/// Builds the section of one case.
fn section(sheet: &Sheet, case: &Case) -> String {
    let asked = asked_fields(case.workload, case.asked).into_iter().filter(|field| !sheet.common.contains(field));
    let asked: Vec<String> = asked.map(|(name, value)| format!("{name} {value}")).collect();
    let mut html = format!("<section id=\"{}\">\n<h2>{}</h2>\n", escape(&case.slug), escape(&case.label));
    if !asked.is_empty() {
        let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape(&asked.join(", ")));
    }
    html += &transactions::of_case(case).map_or(String::new(), |table| table.html());
    html += &tables::latencies(case).html();
    html.push_str(IDLE_THREAD);
    html += &tables::costs(case).html();
    html.push_str("<div class=\"plots\">\n");
    for (_, plot) in charts::charts(case) {
        let _ = writeln!(html, "<figure>{}</figure>", plot.inline_svg());
    }
    html + "</div>\n</section>\n"
}
