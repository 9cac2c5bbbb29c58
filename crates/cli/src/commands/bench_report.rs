//! `bench report`: an HTML page, plots and a table of measured results.

use pandodb_lab::report;

use crate::args::BenchReportArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Reads result lines, writes the requested page and plots, and prints the table.
///
/// # Errors
/// If a file cannot be read or written, or if a line is malformed. The error contains the number of the line.
pub fn run(args: &BenchReportArgs) -> Outcome {
    let lines = report::read(&args.files).map_err(|e| Failure::Misuse(e.to_string()))?;
    if let Some(path) = &args.out {
        std::fs::write(path, report::html(&lines))
            .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
    }
    for (format, directory) in args.images.targets() {
        let written = report::write_images(&lines, directory, format).map_err(|e| Failure::Io(e.to_string()))?;
        eprintln!("{} plots written to {}", written.len(), directory.display());
    }
    output::line(report::table(&lines).trim_end())
}
