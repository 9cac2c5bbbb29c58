//! `bench report`: a page, pictures and a table of what was measured.

use pandodb_lab::report;

use crate::args::BenchReportArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Reads lines, writes what was asked for, and prints the table.
///
/// # Errors
/// A file that cannot be read or written; a line that is none, with its number.
pub fn run(args: &BenchReportArgs) -> Outcome {
    let lines = report::read(&args.files).map_err(|e| Failure::Misuse(e.to_string()))?;
    if let Some(path) = &args.out {
        std::fs::write(path, report::html(&lines))
            .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
    }
    for (format, directory) in args.images.targets() {
        let written = report::write_images(&lines, directory, format).map_err(|e| Failure::Io(e.to_string()))?;
        eprintln!("{} pictures in {}", written.len(), directory.display());
    }
    output::line(report::table(&lines).trim_end())
}
