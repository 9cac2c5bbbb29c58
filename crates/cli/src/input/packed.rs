//! Decompresses gzip and zstd input, which is recognised by its first bytes.
//!
//! ```text
//! 1f 8b                       gzip, one member or several
//! 28 b5 2f fd                 zstd, one frame or several
//! 5x 2a 4d 18                 zstd, a skippable frame
//! anything else               uncompressed
//! ```
//!
//! No text format starts with the bytes of the first three rows. Truncated input, or input with a wrong checksum, is an
//! error.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The last three bytes of the four bytes at the start of a skippable frame, which has no data. The first of these four
/// bytes is in the range 0x50 to 0x5f.
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
const MAGIC: usize = 4;

/// Returns a reader of the text in `input`, which decompresses compressed input.
///
/// # Errors
/// If the first bytes cannot be read.
pub fn open<'a>(mut input: impl BufRead + 'a, buffer_bytes: usize) -> io::Result<Box<dyn BufRead + 'a>> {
    // This loop reads no more bytes than it needs to recognise the format, because the writer of a pipe may send a
    // short first line and then wait for an answer.
    let mut magic = Vec::with_capacity(MAGIC);
    while magic.len() < MAGIC && may_be_packed(&magic) {
        if (&mut input).take(1).read_to_end(&mut magic)? == 0 {
            break;
        }
    }
    let is_gzip = magic.starts_with(&GZIP);
    let is_zstd = magic.len() == MAGIC && may_be_packed(&magic);
    // A pipe cannot be rewound, so the bytes that were read are put in front of the rest again.
    let whole = io::Cursor::new(magic).chain(input);
    Ok(if is_gzip {
        Box::new(BufReader::with_capacity(buffer_bytes, MultiGzDecoder::new(whole)))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(buffer_bytes, Zstd::new(whole)))
    } else {
        Box::new(whole)
    })
}

/// Whether compressed input can start with these bytes.
fn may_be_packed(start: &[u8]) -> bool {
    let skippable = |at: usize, byte: u8| if at == 0 { byte >> 4 == 5 } else { byte == SKIPPABLE[at - 1] };
    GZIP.starts_with(start)
        || ZSTD.starts_with(start)
        || start.iter().enumerate().all(|(at, &byte)| skippable(at, byte))
}

/// The frames of a zstd stream, one after the other.
struct Zstd<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> Zstd<R> {
        Zstd { input, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Starts the next frame with data. Returns false at the end of the input.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.input) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.input).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) => return Err(unreadable(&e)),
            }
        }
        Ok(false)
    }

    /// Checks the checksum of the frame that has just ended.
    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "zstd: checksum mismatch in a frame; the input is damaged",
            ));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.begin_frame()? {
                return Ok(0);
            }
            if !self.decoder.is_finished() && self.decoder.can_collect() < buf.len() {
                let wanted = BlockDecodingStrategy::UptoBytes(buf.len() - self.decoder.can_collect());
                self.decoder.decode_blocks(&mut self.input, wanted).map_err(|e| unreadable(&e))?;
            }
            let read = self.decoder.read(buf)?;
            if read > 0 || buf.is_empty() {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.end_frame()?;
            }
        }
    }
}

fn unreadable(error: &FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        open(bytes, 4096)?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn text() -> Vec<u8> {
        (0..40_000u32).flat_map(|i| format!("key{i:06}\t{}\n", i.wrapping_mul(0x9e37_79b9)).into_bytes()).collect()
    }

    #[test]
    fn compressed_input_reads_like_plain_input() {
        let text = text();
        for pack in [gzip, zstd, <[u8]>::to_vec as fn(&[u8]) -> Vec<u8>] {
            assert!(unpacked(&pack(&text)).unwrap() == text);
            assert_eq!(unpacked(&pack(b"")).unwrap(), b"");
            // Compressed files can be concatenated in the same way as uncompressed files.
            let joined = [pack(b"a\t1\n"), pack(b""), pack(b"b\t2\n")].concat();
            assert_eq!(unpacked(&joined).unwrap(), b"a\t1\nb\t2\n");
        }
        let skipped = [&b"\x5a\x2a\x4d\x18\x03\0\0\0xyz"[..], &zstd(b"a"), b"\x50\x2a\x4d\x18\0\0\0\0"].concat();
        assert_eq!(unpacked(&skipped).unwrap(), b"a");
        for plain in [&b""[..], b"\x1f", b"\x1f\t\n", b"k", b"(", b"(\t\n", b"P\t\n", b"\x28\xb5", b"\x50\x2a\x4d"] {
            assert_eq!(unpacked(plain).unwrap(), plain);
        }
    }

    #[test]
    fn truncated_or_damaged_input_is_an_error() {
        let text = text();
        for pack in [gzip, zstd] {
            let packed = pack(&text);
            for cut in [5, 11, packed.len() / 2, packed.len() - 5, packed.len() - 1] {
                assert!(unpacked(&packed[..cut]).is_err(), "cut at {cut} of {}", packed.len());
            }
            for at in (20..packed.len()).step_by(packed.len() / 50) {
                let mut damaged = packed.clone();
                damaged[at] ^= 0x11;
                assert!(unpacked(&damaged).is_err(), "byte {at} of {} is damaged", packed.len());
            }
            assert!(unpacked(&[&packed[..], b"junk"].concat()).is_err());
        }
    }
}
