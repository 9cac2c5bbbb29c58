//! Bindings of WiredTiger, through `shim/wiredtiger.c`.
//!
//! Threads may share a [`Connection`], as WiredTiger documents for `WT_CONNECTION`. A [`Session`] belongs to one
//! thread. A session borrows its connection, so that it is closed before the connection.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use pandodb_lab::engine::{Result, Write};
use pandodb_lab::transactions::{Conflict, Verdict};

const ABSENT: c_int = 1_000_001;
const CONFLICT: c_int = 1_000_002;

#[repr(C)]
struct RawConnection {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawSession {
    _opaque: [u8; 0],
}

type Bytes = *const c_void;

/// One write of a batch, as the shim declares it.
#[repr(C)]
struct RawWrite {
    key: Bytes,
    key_len: usize,
    value: Bytes,
    value_len: usize,
    is_delete: c_int,
}

/// The function that moves a cursor to a neighbouring entry.
type Step = unsafe extern "C" fn(*mut RawSession, *mut Bytes, *mut usize, *mut Bytes, *mut usize) -> c_int;
/// The function that moves a cursor to the first entry of a scan.
type Seek =
    unsafe extern "C" fn(*mut RawSession, Bytes, usize, *mut Bytes, *mut usize, *mut Bytes, *mut usize) -> c_int;

unsafe extern "C" {
    fn shim_wt_error(code: c_int) -> *const c_char;
    fn shim_wt_version() -> *const c_char;
    fn shim_wt_open(
        directory: *const c_char,
        config: *const c_char,
        table_config: *const c_char,
        out: *mut *mut RawConnection,
    ) -> c_int;
    fn shim_wt_close(connection: *mut RawConnection) -> c_int;
    fn shim_wt_session_open(connection: *mut RawConnection, out: *mut *mut RawSession) -> c_int;
    fn shim_wt_session_close(session: *mut RawSession);
    fn shim_wt_put(session: *mut RawSession, key: Bytes, key_len: usize, value: Bytes, value_len: usize) -> c_int;
    fn shim_wt_delete(session: *mut RawSession, key: Bytes, key_len: usize) -> c_int;
    fn shim_wt_reset(session: *mut RawSession) -> c_int;
    fn shim_wt_begin(session: *mut RawSession) -> c_int;
    fn shim_wt_rollback(session: *mut RawSession) -> c_int;
    fn shim_wt_commit(session: *mut RawSession) -> c_int;
    fn shim_wt_put_once(session: *mut RawSession, key: Bytes, key_len: usize, value: Bytes, value_len: usize) -> c_int;
    fn shim_wt_delete_once(session: *mut RawSession, key: Bytes, key_len: usize) -> c_int;
    fn shim_wt_find(
        session: *mut RawSession,
        key: Bytes,
        key_len: usize,
        value: *mut Bytes,
        value_len: *mut usize,
    ) -> c_int;
    fn shim_wt_seek(
        session: *mut RawSession,
        key: Bytes,
        key_len: usize,
        found: *mut Bytes,
        found_len: *mut usize,
        value: *mut Bytes,
        value_len: *mut usize,
    ) -> c_int;
    fn shim_wt_next(
        session: *mut RawSession,
        found: *mut Bytes,
        found_len: *mut usize,
        value: *mut Bytes,
        value_len: *mut usize,
    ) -> c_int;
    fn shim_wt_seek_back(
        session: *mut RawSession,
        key: Bytes,
        key_len: usize,
        found: *mut Bytes,
        found_len: *mut usize,
        value: *mut Bytes,
        value_len: *mut usize,
    ) -> c_int;
    fn shim_wt_prev(
        session: *mut RawSession,
        found: *mut Bytes,
        found_len: *mut usize,
        value: *mut Bytes,
        value_len: *mut usize,
    ) -> c_int;
    fn shim_wt_write(session: *mut RawSession, writes: *const RawWrite, count: usize) -> c_int;
    fn shim_wt_add(session: *mut RawSession, key: Bytes, key_len: usize, delta: u64) -> c_int;
    fn shim_wt_delete_range(session: *mut RawSession, from: Bytes, from_len: usize, to: Bytes, to_len: usize) -> c_int;
    fn shim_wt_checkpoint(connection: *mut RawConnection) -> c_int;
    fn shim_wt_figures(connection: *mut RawConnection, out: *mut i64, count: usize) -> c_int;
}

/// The names of the values of [`Connection::figures`], in the order of the shim.
pub const FIGURES: [&str; 5] =
    ["block_bytes_read", "block_bytes_written", "log_bytes_written", "cache_bytes", "cache_bytes_dirty"];

/// Converts a return code: `Ok(true)` for 0, `Ok(false)` for an absent key, [`Conflict`], or the error text of WiredTiger.
fn check(code: c_int) -> Result<bool> {
    match code {
        0 => Ok(true),
        ABSENT => Ok(false),
        CONFLICT => Err(Conflict.into()),
        // SAFETY: the function returns a string for any code. The string is in static or thread-local memory, and is
        // copied immediately.
        _ => Err(unsafe { CStr::from_ptr(shim_wt_error(code)) }.to_string_lossy().into_owned().into()),
    }
}

/// The version string of the library.
pub fn version() -> String {
    // SAFETY: the result is a static string.
    unsafe { CStr::from_ptr(shim_wt_version()) }.to_string_lossy().into_owned()
}

/// An open database.
pub struct Connection(NonNull<RawConnection>);

// SAFETY: WiredTiger's connection handle may be used by several threads, and closed by a thread that did not open it.
unsafe impl Send for Connection {}
// SAFETY: as for `Send`. In addition, every call through `&Connection` opens a session of its own.
unsafe impl Sync for Connection {}

impl Connection {
    /// Opens a database and its one table.
    pub fn open(directory: &Path, config: &str, table_config: &str) -> Result<Self> {
        let directory = CString::new(directory.as_os_str().as_encoded_bytes())?;
        let (config, table_config) = (CString::new(config)?, CString::new(table_config)?);
        let mut raw = ptr::null_mut();
        // SAFETY: the three strings end in 0 and outlive the call. `raw` is written only on success.
        check(unsafe { shim_wt_open(directory.as_ptr(), config.as_ptr(), table_config.as_ptr(), &mut raw) })?;
        Ok(Self(NonNull::new(raw).ok_or("WiredTiger returned neither a connection nor an error")?))
    }

    /// Opens a session for one thread.
    pub fn session(&self) -> Result<Session<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the connection is open for as long as `self` lives. `raw` is written only on success.
        check(unsafe { shim_wt_session_open(self.0.as_ptr(), &mut raw) })?;
        Ok(Session {
            raw: NonNull::new(raw).ok_or("WiredTiger returned neither a session nor an error")?,
            of: PhantomData,
        })
    }

    /// Writes all dirty pages.
    pub fn checkpoint(&self) -> Result<()> {
        // SAFETY: the connection is open.
        check(unsafe { shim_wt_checkpoint(self.0.as_ptr()) }).map(drop)
    }

    /// The values of [`FIGURES`].
    pub fn figures(&self) -> Result<[i64; FIGURES.len()]> {
        let mut out = [0; FIGURES.len()];
        // SAFETY: the connection is open, and at most `out.len()` numbers are written.
        check(unsafe { shim_wt_figures(self.0.as_ptr(), out.as_mut_ptr(), out.len()) })?;
        Ok(out)
    }

    /// Closes the database. WiredTiger takes a checkpoint first.
    pub fn close(self) -> Result<()> {
        let raw = self.0;
        std::mem::forget(self);
        // SAFETY: `self` is forgotten after its pointer is taken, so the connection is closed once. No session can
        // outlive the borrow.
        check(unsafe { shim_wt_close(raw.as_ptr()) }).map(drop)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is still open, because `close` forgets `self`. No session can outlive the borrow.
        unsafe { shim_wt_close(self.0.as_ptr()) };
    }
}

/// The session of a thread, with its cursor. A session is not `Send`, because it holds a raw pointer.
pub struct Session<'a> {
    raw: NonNull<RawSession>,
    of: PhantomData<&'a Connection>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: the session was opened by `Connection::session` and is closed once. The connection is still open,
        // because it is borrowed.
        unsafe { shim_wt_session_close(self.raw.as_ptr()) };
    }
}

/// Bytes that a cursor points to.
///
/// # Safety
/// `data` and `len` come from a successful call on the session, and no other call on it happens within `'a`.
unsafe fn borrowed<'a>(data: Bytes, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(data.cast(), len) }
}

impl Session<'_> {
    /// Inserts or overwrites the value of a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the session is open and belongs to this thread. Both slices are read within the call.
        check(unsafe { shim_wt_put(self.raw.as_ptr(), k, key.len(), v, value.len()) }).map(drop)
    }

    /// Deletes a key. An absent key is no error.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        // SAFETY: as in `put`.
        check(unsafe { shim_wt_delete(self.raw.as_ptr(), key.as_ptr().cast(), key.len()) }).map(drop)
    }

    /// Passes the value of a key to `visit`. Returns whether the key exists.
    pub fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let (mut value, mut len) = (ptr::null(), 0);
        // SAFETY: as in `put`. The two results are written on success.
        let code = unsafe { shim_wt_find(self.raw.as_ptr(), key.as_ptr().cast(), key.len(), &mut value, &mut len) };
        let found = check(code)?;
        if found {
            // SAFETY: the call succeeded, and the cursor is reset only after the borrow has ended.
            visit(unsafe { borrowed(value, len) });
        }
        self.reset()?;
        Ok(found)
    }

    /// Adds to a counter, in a transaction.
    pub fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        const { assert!(cfg!(target_endian = "little"), "the shim adds in native byte order") };
        // SAFETY: as in `put`.
        check(unsafe { shim_wt_add(self.raw.as_ptr(), key.as_ptr().cast(), key.len(), delta) }).map(drop)
    }

    /// Deletes the keys in the range `from..to`, in a transaction.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let (f, t) = (from.as_ptr().cast(), to.as_ptr().cast());
        // SAFETY: as in `put`.
        check(unsafe { shim_wt_delete_range(self.raw.as_ptr(), f, from.len(), t, to.len()) }).map(drop)
    }

    /// Commits several writes in one transaction.
    pub fn write(&mut self, writes: &[Write]) -> Result<()> {
        let raw = |write: &Write| match *write {
            Write::Put(key, value) => RawWrite {
                key: key.as_ptr().cast(),
                key_len: key.len(),
                value: value.as_ptr().cast(),
                value_len: value.len(),
                is_delete: 0,
            },
            Write::Delete(key) => RawWrite {
                key: key.as_ptr().cast(),
                key_len: key.len(),
                value: ptr::null(),
                value_len: 0,
                is_delete: 1,
            },
        };
        let raws: Vec<RawWrite> = writes.iter().map(raw).collect();
        // SAFETY: as in `put`. All slices live until the end of the call.
        check(unsafe { shim_wt_write(self.raw.as_ptr(), raws.as_ptr(), raws.len()) })?;
        self.reset()
    }

    /// Runs `work` between a begin and a commit or rollback. Inside, only [`Session::get`], [`Session::put_once`],
    /// [`Session::delete_once`] and [`Session::scan_once`] may be called.
    pub fn transact(&mut self, work: impl FnOnce(&mut Self) -> Result<Verdict>) -> Result<Verdict> {
        // SAFETY: the session is open, belongs to this thread, and has no transaction.
        check(unsafe { shim_wt_begin(self.raw.as_ptr()) })?;
        let done = work(self);
        let code = match done {
            // SAFETY: the session has the transaction that began above.
            Ok(Verdict::Commit) => unsafe { shim_wt_commit(self.raw.as_ptr()) },
            // SAFETY: as above.
            Ok(Verdict::RollBack) | Err(_) => unsafe { shim_wt_rollback(self.raw.as_ptr()) },
        };
        let verdict = done?;
        check(code)?;
        Ok(verdict)
    }

    /// Inserts or overwrites the value of a key in the open transaction.
    pub fn put_once(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: as in `put`.
        check(unsafe { shim_wt_put_once(self.raw.as_ptr(), k, key.len(), v, value.len()) }).map(drop)
    }

    /// Deletes a key in the open transaction. An absent key is no error.
    pub fn delete_once(&mut self, key: &[u8]) -> Result<()> {
        // SAFETY: as in `put`.
        check(unsafe { shim_wt_delete_once(self.raw.as_ptr(), key.as_ptr().cast(), key.len()) }).map(drop)
    }

    /// Visits at most `limit` entries from `from` on in the open transaction, and returns their number.
    pub fn scan_once(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        self.walk(from, limit, (shim_wt_seek, shim_wt_next), visit)
    }

    /// Visits at most `limit` entries from `from` on, in one snapshot, and returns their number.
    pub fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.scan_by(from, limit, (shim_wt_seek, shim_wt_next), visit)
    }

    /// Visits at most `limit` entries in descending order, from the last key that is at most `from`, in one snapshot, and
    /// returns their number.
    pub fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.scan_by(from, limit, (shim_wt_seek_back, shim_wt_prev), visit)
    }

    fn scan_by(
        &mut self,
        from: &[u8],
        limit: usize,
        by: (Seek, Step),
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        // SAFETY: the session is open, belongs to this thread, and has no transaction.
        check(unsafe { shim_wt_begin(self.raw.as_ptr()) })?;
        let scanned = self.walk(from, limit, by, &mut |key, value| {
            visit(key, value);
            true
        });
        // SAFETY: this call ends the transaction that began above, and also resets the cursor.
        check(unsafe { shim_wt_rollback(self.raw.as_ptr()) })?;
        scanned
    }

    /// Visits entries until `visit` returns `false`. Returns the number of entries for which it has returned `true`.
    fn walk(
        &mut self,
        from: &[u8],
        limit: usize,
        (seek, step): (Seek, Step),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        let (mut key, mut key_len, mut value, mut value_len) = (ptr::null(), 0, ptr::null(), 0);
        let mut count = 0;
        while count < limit {
            let (k, kl, v, vl) = (&mut key, &mut key_len, &mut value, &mut value_len);
            let raw = self.raw.as_ptr();
            let code = if count == 0 {
                // SAFETY: as in `get`, but four results are written on success.
                unsafe { seek(raw, from.as_ptr().cast(), from.len(), k, kl, v, vl) }
            } else {
                // SAFETY: as for the first entry. The cursor is at an entry.
                unsafe { step(raw, k, kl, v, vl) }
            };
            if !check(code)? {
                break;
            }
            // SAFETY: the call succeeded, and the cursor moves only after `visit` has returned.
            if !visit(unsafe { borrowed(key, key_len) }, unsafe { borrowed(value, value_len) }) {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    fn reset(&mut self) -> Result<()> {
        // SAFETY: the session is open and belongs to this thread.
        check(unsafe { shim_wt_reset(self.raw.as_ptr()) }).map(drop)
    }
}
