//! Bindings of the functions of LevelDB's C interface that the adapter calls.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use pandodb_lab::engine::{Result, Write};

macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}
opaque!(RawDb, RawOptions, RawCache, RawFilter, RawRead, RawWrite, RawBatch, RawIterator);

unsafe extern "C" {
    fn leveldb_open(options: *const RawOptions, name: *const c_char, error: *mut *mut c_char) -> *mut RawDb;
    fn leveldb_close(db: *mut RawDb);
    fn leveldb_put(
        db: *mut RawDb,
        options: *const RawWrite,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_delete(
        db: *mut RawDb,
        options: *const RawWrite,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: *mut RawDb,
        options: *const RawRead,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_create_iterator(db: *mut RawDb, options: *const RawRead) -> *mut RawIterator;
    fn leveldb_iter_destroy(iterator: *mut RawIterator);
    fn leveldb_iter_valid(iterator: *const RawIterator) -> c_uchar;
    fn leveldb_iter_seek(iterator: *mut RawIterator, key: *const c_char, key_len: usize);
    fn leveldb_iter_seek_to_last(iterator: *mut RawIterator);
    fn leveldb_iter_next(iterator: *mut RawIterator);
    fn leveldb_iter_prev(iterator: *mut RawIterator);
    fn leveldb_write(db: *mut RawDb, options: *const RawWrite, batch: *mut RawBatch, error: *mut *mut c_char);
    fn leveldb_writebatch_create() -> *mut RawBatch;
    fn leveldb_writebatch_destroy(batch: *mut RawBatch);
    fn leveldb_writebatch_put(
        batch: *mut RawBatch,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: *mut RawBatch, key: *const c_char, key_len: usize);
    fn leveldb_iter_key(iterator: *const RawIterator, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: *const RawIterator, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: *const RawIterator, error: *mut *mut c_char);
    fn leveldb_property_value(db: *mut RawDb, name: *const c_char) -> *mut c_char;
    fn leveldb_compact_range(
        db: *mut RawDb,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn leveldb_options_create() -> *mut RawOptions;
    fn leveldb_options_destroy(options: *mut RawOptions);
    fn leveldb_options_set_filter_policy(options: *mut RawOptions, filter: *mut RawFilter);
    fn leveldb_options_set_create_if_missing(options: *mut RawOptions, yes: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: *mut RawOptions, bytes: usize);
    fn leveldb_options_set_max_open_files(options: *mut RawOptions, files: c_int);
    fn leveldb_options_set_cache(options: *mut RawOptions, cache: *mut RawCache);
    fn leveldb_options_set_block_size(options: *mut RawOptions, bytes: usize);
    fn leveldb_options_set_max_file_size(options: *mut RawOptions, bytes: usize);
    fn leveldb_options_set_compression(options: *mut RawOptions, kind: c_int);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut RawFilter;
    fn leveldb_filterpolicy_destroy(filter: *mut RawFilter);
    fn leveldb_readoptions_create() -> *mut RawRead;
    fn leveldb_readoptions_destroy(options: *mut RawRead);
    fn leveldb_writeoptions_create() -> *mut RawWrite;
    fn leveldb_writeoptions_destroy(options: *mut RawWrite);
    fn leveldb_writeoptions_set_sync(options: *mut RawWrite, yes: c_uchar);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut RawCache;
    fn leveldb_cache_destroy(cache: *mut RawCache);
    fn leveldb_free(memory: *mut c_void);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

/// The library's version.
pub fn version() -> String {
    // SAFETY: the function has no arguments and no state.
    let (major, minor) = unsafe { (leveldb_major_version(), leveldb_minor_version()) };
    format!("{major}.{minor}")
}

/// Settings for opening a store. All sizes are in bytes.
pub struct Settings {
    /// Size of one memtable. LevelDB may have two memtables at the same time.
    pub write_buffer: usize,
    /// Size of the block cache.
    pub cache: usize,
    /// The maximum number of open tables. The index and the filter of each open table are in memory.
    pub max_open_files: usize,
    /// Maximum size of a table.
    pub max_file: usize,
    /// Size of a block.
    pub block: usize,
    /// Bits of the Bloom filter for each key.
    pub bits_per_key: usize,
}

/// If a call returned an error, converts the error and frees its text.
///
/// # Safety
/// `error` is null or a string that LevelDB allocated, and is not used afterwards.
unsafe fn check(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the pointer is not null, so it points to a string that ends in 0, as the caller promises.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the memory was allocated by LevelDB and is freed once.
    unsafe { leveldb_free(error.cast()) };
    Err(text.into())
}

/// An open store, with the objects that LevelDB borrows while the store is open.
pub struct Db {
    db: NonNull<RawDb>,
    cache: *mut RawCache,
    filter: *mut RawFilter,
    read: *mut RawRead,
    write: *mut RawWrite,
}

// SAFETY: LevelDB's handle, cache, filter and constant options may be used by several threads at once.
unsafe impl Send for Db {}
// SAFETY: LevelDB's handle and the other objects may be used by several threads at once, as for `Send`. Iterators may
// not be shared, but each iterator is used only within one call.
unsafe impl Sync for Db {}

impl Db {
    /// Opens a store, and creates it if it does not exist.
    pub fn open(directory: &Path, settings: &Settings) -> Result<Self> {
        let name = CString::new(directory.as_os_str().as_encoded_bytes())?;
        let bits = c_int::try_from(settings.bits_per_key)?;
        let files = c_int::try_from(settings.max_open_files)?;
        let mut error = ptr::null_mut();
        // SAFETY: the constructors have no preconditions. The options are destroyed after the open has copied them, as
        // in LevelDB's own tests. Cache and filter are destroyed in `drop`, after the store is closed.
        unsafe {
            let options = leveldb_options_create();
            let (cache, filter) = (leveldb_cache_create_lru(settings.cache), leveldb_filterpolicy_create_bloom(bits));
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_filter_policy(options, filter);
            leveldb_options_set_write_buffer_size(options, settings.write_buffer);
            leveldb_options_set_max_open_files(options, files);
            leveldb_options_set_max_file_size(options, settings.max_file);
            leveldb_options_set_block_size(options, settings.block);
            leveldb_options_set_compression(options, 0);
            let db = leveldb_open(options, name.as_ptr(), &mut error);
            leveldb_options_destroy(options);
            let Some(db) = NonNull::new(db) else {
                leveldb_cache_destroy(cache);
                leveldb_filterpolicy_destroy(filter);
                check(error)?;
                return Err("leveldb_open returned neither a store nor an error".into());
            };
            let (read, write) = (leveldb_readoptions_create(), leveldb_writeoptions_create());
            leveldb_writeoptions_set_sync(write, 0);
            Ok(Self { db, cache, filter, read, write })
        }
    }

    /// Inserts or overwrites the value of a key.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        let mut error = ptr::null_mut();
        // SAFETY: the store is open. Both slices are copied within the call. The error string was allocated by LevelDB.
        unsafe {
            leveldb_put(self.db.as_ptr(), self.write, k, key.len(), v, value.len(), &mut error);
            check(error)
        }
    }

    /// Deletes a key. An absent key is no error.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: as in `put`.
        unsafe {
            leveldb_delete(self.db.as_ptr(), self.write, key.as_ptr().cast(), key.len(), &mut error);
            check(error)
        }
    }

    /// Clears `value` and copies the value of a key into it. Returns whether the key exists.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let (mut error, mut len) = (ptr::null_mut(), 0);
        // SAFETY: as in `put`. The result is null or `len` bytes, which are freed once, after they were copied.
        unsafe {
            let data = leveldb_get(self.db.as_ptr(), self.read, key.as_ptr().cast(), key.len(), &mut len, &mut error);
            check(error)?;
            if data.is_null() {
                return Ok(false);
            }
            value.extend_from_slice(slice::from_raw_parts(data.cast(), len));
            leveldb_free(data.cast());
        }
        Ok(true)
    }

    /// Visits at most `limit` entries from `from` on and returns their number.
    pub fn scan(&self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // SAFETY: the store is open, and is closed only after the iterator is destroyed.
        let iterator = Iterator(unsafe { leveldb_create_iterator(self.db.as_ptr(), self.read) });
        // SAFETY: the iterator is live, and `from` is read within the call.
        unsafe { leveldb_iter_seek(iterator.0, from.as_ptr().cast(), from.len()) };
        iterator.visit(limit, leveldb_iter_next, visit)
    }

    /// Visits at most `limit` entries in descending order, from the last key that is at most `from`, and returns their
    /// number.
    pub fn scan_back(&self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // SAFETY: the store is open, and is closed only after the iterator is destroyed.
        let iterator = Iterator(unsafe { leveldb_create_iterator(self.db.as_ptr(), self.read) });
        // SAFETY: the iterator is live, and `from` is read within the call. The iterator moves only if it is valid.
        unsafe {
            leveldb_iter_seek(iterator.0, from.as_ptr().cast(), from.len());
            if leveldb_iter_valid(iterator.0) == 0 {
                leveldb_iter_seek_to_last(iterator.0);
            } else if iterator.entry().0 != from {
                leveldb_iter_prev(iterator.0);
            }
        }
        iterator.visit(limit, leveldb_iter_prev, visit)
    }

    /// Commits several writes as one.
    pub fn write(&self, writes: &[Write]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the store is open. The batch copies the slices within the calls, and is destroyed once. The error
        // string was allocated by LevelDB.
        unsafe {
            let batch = leveldb_writebatch_create();
            for write in writes {
                match write {
                    Write::Put(key, value) => {
                        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
                        leveldb_writebatch_put(batch, k, key.len(), v, value.len());
                    }
                    Write::Delete(key) => leveldb_writebatch_delete(batch, key.as_ptr().cast(), key.len()),
                }
            }
            leveldb_write(self.db.as_ptr(), self.write, batch, &mut error);
            leveldb_writebatch_destroy(batch);
            check(error)
        }
    }

    /// The text of a property, or `None` if LevelDB has no such property.
    pub fn property(&self, name: &CStr) -> Option<String> {
        // SAFETY: the store is open. The result is null or a string that LevelDB allocated. The string is freed once,
        // after it was copied.
        unsafe {
            let text = leveldb_property_value(self.db.as_ptr(), name.as_ptr());
            if text.is_null() {
                return None;
            }
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            leveldb_free(text.cast());
            Some(copy)
        }
    }

    /// Writes the memtable to a table and waits until this is done. This function compacts a range without keys, which
    /// has exactly this effect.
    pub fn flush(&self) {
        let nowhere = [0_u8; 1];
        // SAFETY: the store is open. Both ends of the range are the empty key, which is below every key.
        unsafe { leveldb_compact_range(self.db.as_ptr(), nowhere.as_ptr().cast(), 0, nowhere.as_ptr().cast(), 0) };
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: each object was created by `open` and is destroyed once, the store first. No iterator outlives a
        // call.
        unsafe {
            leveldb_close(self.db.as_ptr());
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

struct Iterator(*mut RawIterator);

impl Iterator {
    /// The key and the value.
    ///
    /// # Safety
    /// The iterator is valid, and does not move while the slices are used.
    unsafe fn entry(&self) -> (&[u8], &[u8]) {
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: the iterator is valid, as the caller promises, so both pointers point to bytes of these lengths.
        unsafe {
            let key = leveldb_iter_key(self.0, &mut key_len);
            let value = leveldb_iter_value(self.0, &mut value_len);
            (slice::from_raw_parts(key.cast(), key_len), slice::from_raw_parts(value.cast(), value_len))
        }
    }

    /// Visits at most `limit` entries from the current one on, moving by `step`.
    fn visit(
        &self,
        limit: usize,
        step: unsafe extern "C" fn(*mut RawIterator),
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the iterator is live.
        while count < limit && unsafe { leveldb_iter_valid(self.0) } != 0 {
            // SAFETY: the iterator is valid, and moves only after `visit` has returned.
            let (key, value) = unsafe { self.entry() };
            visit(key, value);
            count += 1;
            if count < limit {
                // SAFETY: the iterator is valid.
                unsafe { step(self.0) };
            }
        }
        let mut error = ptr::null_mut();
        // SAFETY: the iterator is live. The error string was allocated by LevelDB.
        unsafe {
            leveldb_iter_get_error(self.0, &mut error);
            check(error)?;
        }
        Ok(count)
    }
}

impl Drop for Iterator {
    fn drop(&mut self) {
        // SAFETY: the iterator was created by `leveldb_create_iterator` and is destroyed once.
        unsafe { leveldb_iter_destroy(self.0) };
    }
}
