//! Devices and files that change the behaviour of other devices and files. A wrapper implements only the methods whose
//! behaviour differs, and every other call is forwarded.
//!
//! ```text
//!   impl DeviceWrapper for Mine { inner, … }  ⇒  impl Device for Mine: each method that is left out calls inner()
//! ```
//!
//! Invariant: a method of [`Device`] or [`File`] that is forwarded here is forwarded by every wrapper.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Device, File, JoinHandle, LockGuard, LockMode, OpenHow, Queue};

/// A device that wraps another device. The methods are those of [`Device`], which every wrapper implements.
pub trait DeviceWrapper: Send + Sync + fmt::Debug {
    /// The wrapped device.
    fn inner(&self) -> &dyn Device;
    /// See [`Device::open`]. A wrapper that also wraps files overrides this method.
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        self.inner().open(name, how)
    }
    /// See [`Device::rename`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().rename(from, to)
    }
    /// See [`Device::remove`].
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner().remove(name)
    }
    /// See [`Device::list`].
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner().list()
    }
    /// See [`Device::sync_dir`].
    fn sync_dir(&self) -> io::Result<()> {
        self.inner().sync_dir()
    }
    /// See [`Device::lock`].
    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.inner().lock(mode)
    }
    /// See [`Device::now`].
    fn now(&self) -> Duration {
        self.inner().now()
    }
    /// See [`Device::wall_clock`].
    fn wall_clock(&self) -> Option<Duration> {
        self.inner().wall_clock()
    }
    /// See [`Device::sleep`].
    fn sleep(&self, time: Duration) {
        self.inner().sleep(time);
    }
    /// See [`Device::random`].
    fn random(&self) -> u64 {
        self.inner().random()
    }
    /// See [`Device::spawn`].
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.inner().spawn(name, body)
    }
    /// See [`Device::path`].
    fn path(&self) -> String {
        self.inner().path()
    }
    /// See [`Device::available`].
    fn available(&self) -> Option<u64> {
        self.inner().available()
    }
}

impl<W: DeviceWrapper> Device for W {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        DeviceWrapper::open(self, name, how)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        DeviceWrapper::rename(self, from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        DeviceWrapper::remove(self, name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        DeviceWrapper::list(self)
    }
    fn sync_dir(&self) -> io::Result<()> {
        DeviceWrapper::sync_dir(self)
    }
    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        DeviceWrapper::lock(self, mode)
    }
    fn now(&self) -> Duration {
        DeviceWrapper::now(self)
    }
    fn wall_clock(&self) -> Option<Duration> {
        DeviceWrapper::wall_clock(self)
    }
    fn sleep(&self, time: Duration) {
        DeviceWrapper::sleep(self, time);
    }
    fn random(&self) -> u64 {
        DeviceWrapper::random(self)
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        DeviceWrapper::spawn(self, name, body)
    }
    fn path(&self) -> String {
        DeviceWrapper::path(self)
    }
    fn available(&self) -> Option<u64> {
        DeviceWrapper::available(self)
    }
}

/// A file that wraps another file. The methods are those of [`File`], which every wrapper implements. A wrapper that
/// overrides [`FileWrapper::read_at`] also overrides [`FileWrapper::queue`] if the wrapped file has a queue.
pub trait FileWrapper: Send + Sync + fmt::Debug {
    /// The wrapped file.
    fn inner(&self) -> &dyn File;
    /// See [`File::read_at`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner().read_at(offset, buf)
    }
    /// See [`File::write_at`].
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        self.inner().write_at(offset, buf)
    }
    /// See [`File::len`].
    fn len(&self) -> io::Result<u64> {
        self.inner().len()
    }
    /// See [`File::is_empty`].
    fn is_empty(&self) -> io::Result<bool> {
        self.inner().is_empty()
    }
    /// See [`File::set_len`].
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().set_len(len)
    }
    /// See [`File::allocate`].
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner().allocate(offset, len)
    }
    /// See [`File::punch_hole`].
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner().punch_hole(offset, len)
    }
    /// See [`File::hole_unit`].
    fn hole_unit(&self) -> u64 {
        self.inner().hole_unit()
    }
    /// See [`File::sync`].
    fn sync(&self) -> io::Result<()> {
        self.inner().sync()
    }
    /// See [`File::occupied`].
    fn occupied(&self) -> io::Result<u64> {
        self.inner().occupied()
    }
    /// See [`File::queue`].
    fn queue(&self) -> Option<Box<dyn Queue>> {
        self.inner().queue()
    }
    /// See [`File::queue_serves_one`].
    fn queue_serves_one(&self, bytes: usize) -> bool {
        self.inner().queue_serves_one(bytes)
    }
}

impl<W: FileWrapper> File for W {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        FileWrapper::read_at(self, offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        FileWrapper::write_at(self, offset, buf)
    }
    fn len(&self) -> io::Result<u64> {
        FileWrapper::len(self)
    }
    fn is_empty(&self) -> io::Result<bool> {
        FileWrapper::is_empty(self)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        FileWrapper::set_len(self, len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        FileWrapper::allocate(self, offset, len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        FileWrapper::punch_hole(self, offset, len)
    }
    fn hole_unit(&self) -> u64 {
        FileWrapper::hole_unit(self)
    }
    fn sync(&self) -> io::Result<()> {
        FileWrapper::sync(self)
    }
    fn occupied(&self) -> io::Result<u64> {
        FileWrapper::occupied(self)
    }
    fn queue(&self) -> Option<Box<dyn Queue>> {
        FileWrapper::queue(self)
    }
    fn queue_serves_one(&self, bytes: usize) -> bool {
        FileWrapper::queue_serves_one(self, bytes)
    }
}
