//! Renders plots as PNG. The crate `resvg`, which is pure Rust, draws the SVG with the font DejaVu Sans from the crate
//! `dejavu`. Fonts of the system are not used, so that the image is the same on every machine.

use std::sync::{Arc, OnceLock};

use resvg::{tiny_skia, usvg};

use crate::engine::Result;

/// Pixels for each unit of the SVG.
const SCALE: f32 = 2.0;

fn options() -> &'static usvg::Options<'static> {
    static OPTIONS: OnceLock<usvg::Options<'static>> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(dejavu::sans::regular())));
        fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(dejavu::sans::bold())));
        fonts.set_sans_serif_family("DejaVu Sans");
        let font_family = "DejaVu Sans".to_owned();
        usvg::Options { fontdb: Arc::new(fonts), font_family, ..usvg::Options::default() }
    })
}

/// Renders the SVG as a PNG image.
pub(super) fn png(svg: &str) -> Result<Vec<u8>> {
    let tree = usvg::Tree::from_str(svg, options())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the plot has no size")?;
    let mut image =
        tiny_skia::Pixmap::new(size.width(), size.height()).ok_or("the plot is too large for a PNG image")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut image.as_mut());
    Ok(image.encode_png()?)
}
