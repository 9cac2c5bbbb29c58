//! The files after a crash: the input of recovery.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::base::random::mix;
use crate::device::content::Content;

/// The files of a directory on a machine that is switched off. Cheap to clone (a pointer per file); changing a clone
/// does not change the original.
///
/// Some methods damage a file, for tests of damage. These methods panic if the file does not exist, because a test
/// without the file would test nothing.
#[derive(Clone, Default)]
pub struct SimImage {
    files: BTreeMap<Arc<str>, Content>,
}

impl SimImage {
    pub(super) fn from_files(files: BTreeMap<Arc<str>, Content>) -> SimImage {
        SimImage { files }
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = (&Arc<str>, &Content)> {
        self.files.iter()
    }

    /// The files with their lengths in bytes, by name.
    pub fn files(&self) -> Vec<(String, u64)> {
        self.files.iter().map(|(name, content)| (name.to_string(), content.len())).collect()
    }

    /// All bytes of a file, if it exists. Holes are filled with zeros, so use [`SimImage::ranges`] and
    /// [`SimImage::read`] for sparse files.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        let content = self.files.get(name)?;
        Some(self.read(name, 0..content.len()))
    }

    /// The bytes of a range of a file, up to the end of the file.
    pub fn read(&self, name: &str, range: Range<u64>) -> Vec<u8> {
        let content = self.content(name);
        let end = range.end.min(content.len());
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        let n = content.read(range.start, &mut bytes);
        debug_assert_eq!(n, bytes.len(), "the range was cut at the end");
        bytes
    }

    /// The ranges of a file that are not holes, in bytes and in ascending order.
    pub fn ranges(&self, name: &str) -> Vec<Range<u64>> {
        self.content(name).ranges()
    }

    /// A hash of the names, lengths and bytes of all files. Two images with the same hash can be treated as equal. The
    /// call reads only the pages that were not yet hashed for an earlier image.
    pub fn hash(&self) -> u64 {
        let files = self.files.iter().map(|(name, content)| {
            let name = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
            mix(name.wrapping_add(mix(content.hash())))
        });
        files.fold(0, u64::wrapping_add)
    }

    /// Flips one bit of a file. `bit` is 0 (the lowest) to 7.
    pub fn flip_bit(&mut self, name: &str, byte: u64, bit: u32) {
        let mut value = [0];
        let n = self.content(name).read(byte, &mut value);
        assert!(n == 1 && bit < 8, "bit {bit} of byte {byte} of `{name}`");
        self.content_mut(name).write(byte, &[value[0] ^ (1 << bit)]);
    }

    /// Cuts a file to `len` bytes, or extends it with a hole.
    pub fn truncate(&mut self, name: &str, len: u64) {
        self.content_mut(name).set_len(len);
    }

    /// Overwrites bytes of a file. Extends the file if the bytes end beyond its end, and creates the file if it is
    /// missing.
    pub fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        self.files.entry(Arc::from(name)).or_default().write(offset, bytes);
    }

    /// Removes a file.
    pub fn remove(&mut self, name: &str) {
        let removed = self.files.remove(name);
        assert!(removed.is_some(), "there is no `{name}` in the image");
    }

    fn content(&self, name: &str) -> &Content {
        self.files.get(name).unwrap_or_else(|| panic!("there is no `{name}` in the image"))
    }

    fn content_mut(&mut self, name: &str) -> &mut Content {
        self.files.get_mut(name).unwrap_or_else(|| panic!("there is no `{name}` in the image"))
    }
}

impl fmt::Debug for SimImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.files).finish()
    }
}
