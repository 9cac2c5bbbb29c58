//! The options `--svg` and `--png` of the commands that draw plots.

use std::path::{Path, PathBuf};

use clap::Args;
use pandodb_lab::plot::ImageFormat;

/// The directories for plots as image files.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// Write the plots as SVG files into this directory.
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Write the plots as PNG files into this directory. Needs a build with the feature `png`.
    #[arg(long, value_name = "DIR", value_parser = png_directory)]
    pub png: Option<PathBuf>,
}

impl ImageArgs {
    /// The requested formats, each with its directory.
    pub fn targets(&self) -> impl Iterator<Item = (ImageFormat, &Path)> {
        let directory = |format| match format {
            ImageFormat::Svg => self.svg.as_deref(),
            #[cfg(feature = "png")]
            ImageFormat::Png => self.png.as_deref(),
        };
        ImageFormat::ALL.iter().filter_map(move |&format| Some((format, directory(format)?)))
    }
}

/// Refuses `--png` before any measurement if this build cannot write PNG.
fn png_directory(path: &str) -> Result<PathBuf, String> {
    if cfg!(feature = "png") {
        return Ok(path.into());
    }
    Err("this build of `pando` cannot write PNG: build it with `cargo build --release -p pando --features png`, \
         or use `--svg` instead"
        .to_owned())
}
