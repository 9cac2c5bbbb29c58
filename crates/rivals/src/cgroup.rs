//! Runs a child process in its own memory cgroup. The limit of the cgroup covers the engine's own caches and the page
//! cache together, so that LMDB, which uses only the page cache, gets the same memory as RocksDB, which uses a block
//! cache.
//!
//! ```text
//!   parent: Group::create(delegated, budget + allowance) ─▶ command.env(JOIN, …) ─▶ spawn ─▶ wait ─▶ drop: removed
//!   child:  join_if_asked(), first thing in main: writes its own id into the group, before it holds any memory
//! ```
//!
//! The group is created under a directory that the caller names and owns. Root could create the group elsewhere in the
//! hierarchy, but then the process would leave its own group and escape limits that the administrator has set. The
//! kernel has two versions of the cgroup interface. The files in a cgroup's directory show which version it uses.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The environment variable that tells a child which group to join. Its value is the path of the file that lists the
/// group's processes.
pub const JOIN: &str = "PANDO_RIVALS_JOIN";
/// The environment variable for the directory under which groups may be created, if the command line names none.
pub const DELEGATED: &str = "PANDO_RIVALS_CGROUP";

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1, with the file `memory.limit_in_bytes`.
    One,
    /// Version 2, with the file `memory.max`.
    Two,
}

/// A memory cgroup, which is removed when dropped. Its processes must have ended before the drop.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
    version: Version,
    swap_is_off: bool,
}

/// The interface version of a directory, or the reason why it is not usable.
fn version_of(parent: &Path) -> Result<Version, String> {
    let at = parent.display();
    if parent.join("memory.limit_in_bytes").exists() {
        return Ok(Version::One);
    }
    let Ok(controllers) = fs::read_to_string(parent.join("cgroup.controllers")) else {
        return Err(format!("{at} is not a memory cgroup"));
    };
    if controllers.split_whitespace().all(|c| c != "memory") {
        return Err(format!("{at} has no memory controller"));
    }
    Ok(Version::Two)
}

impl Group {
    /// Creates the group `pando-rivals-PID` under `parent`, with a limit of `bytes` of memory and no swap.
    ///
    /// # Errors
    /// The reason, for printing: no directory was named, the directory has no memory controller, or permission is
    /// denied.
    pub fn create(parent: Option<&Path>, bytes: u64) -> Result<Self, String> {
        let parent = parent.ok_or_else(|| {
            format!("no cgroup was delegated; name one with --cgroup or the environment variable {DELEGATED}")
        })?;
        let version = version_of(parent)?;
        if version == Version::Two {
            // Child groups have the memory controller only if the parent group enables it for them. This is not
            // possible while the parent group contains processes.
            set(parent, "cgroup.subtree_control", "+memory")?;
        }
        let directory = parent.join(format!("pando-rivals-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let mut group = Self { directory, version, swap_is_off: false };
        // Dropping `group` removes the directory if setting a limit fails.
        match version {
            Version::One => set(&group.directory, "memory.limit_in_bytes", &bytes.to_string())?,
            Version::Two => set(&group.directory, "memory.max", &bytes.to_string())?,
        }
        group.swap_is_off = group.forbid_swap(bytes).is_ok();
        Ok(group)
    }

    fn forbid_swap(&self, bytes: u64) -> Result<(), String> {
        match self.version {
            Version::One => {
                // This file limits memory and swap together. A kernel without swap accounting has no such file.
                set(&self.directory, "memory.swappiness", "0")?;
                let both = "memory.memsw.limit_in_bytes";
                if self.directory.join(both).exists() { set(&self.directory, both, &bytes.to_string()) } else { Ok(()) }
            }
            Version::Two => set(&self.directory, "memory.swap.max", "0"),
        }
    }

    /// Sets the environment of a command so that its process joins the group when it calls [`join_if_asked`].
    pub fn adopt(&self, command: &mut Command) {
        command.env(JOIN, self.directory.join("cgroup.procs"));
    }

    /// The version of the interface.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether swapping is disabled for the group.
    pub fn swap_is_off(&self) -> bool {
        self.swap_is_off
    }

    /// The peak memory of the group in bytes, page cache included. `None` if the kernel does not report it.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// The number of processes of the group that the kernel killed at the limit. `None` if the kernel does not report
    /// this number.
    pub fn killed(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.directory.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group remains busy for a moment after its last process has ended.
        for _ in 0..100 {
            match fs::remove_dir(&self.directory) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => thread::sleep(Duration::from_millis(10)),
                Ok(()) => return,
                Err(_) => break,
            }
        }
        eprintln!("cannot remove the cgroup {}; remove the directory by hand", self.directory.display());
    }
}

fn set(directory: &Path, file: &str, value: &str) -> Result<(), String> {
    let path = directory.join(file);
    fs::write(&path, value).map_err(|e| format!("{} = {value}: {e}", path.display()))
}

/// The directory for groups: the given directory, or the directory in the environment if none is given.
pub fn delegated(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| env::var_os(DELEGATED).map(PathBuf::from))
}

/// Joins the group that the parent process created for this process, if any.
///
/// # Errors
/// If joining fails. Then the process must not measure, because its memory would not be limited.
pub fn join_if_asked() -> io::Result<bool> {
    match env::var_os(JOIN) {
        Some(list) => join(&list).map(|()| true),
        None => Ok(false),
    }
}

fn join(list: &OsString) -> io::Result<()> {
    fs::write(list, std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    const ALLOCATE: &str = "PANDO_RIVALS_TEST_ALLOCATE";

    /// Creates a directory with plain files in place of the files of a real controller. With this directory, tests can
    /// check on any machine what the code writes to these files.
    fn pretend(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn both_interface_versions_are_detected() {
        for (files, version, limit) in [
            (&[("memory.limit_in_bytes", "")][..], Version::One, "memory.limit_in_bytes"),
            (&[("cgroup.controllers", "cpu memory"), ("cgroup.subtree_control", "")], Version::Two, "memory.max"),
        ] {
            let parent = pretend(files);
            let group = Group::create(Some(parent.path()), 1 << 20).unwrap();
            assert_eq!(group.version(), version);
            assert!(group.swap_is_off());
            assert_eq!(fs::read_to_string(group.directory.join(limit)).unwrap(), "1048576");
            assert_eq!((group.peak_bytes(), group.killed()), (None, None));
            let mut command = Command::new("true");
            group.adopt(&mut command);
            assert!(command.get_envs().any(|(name, value)| name == JOIN && value.is_some()));
            fs::remove_dir_all(&group.directory).unwrap();
            fs::create_dir(&group.directory).unwrap(); // in a real cgroup, rmdir ignores the controller files
            let at = group.directory.clone();
            drop(group);
            assert!(!at.exists());
        }
    }

    #[test]
    fn errors_state_the_reason() {
        assert!(Group::create(None, 1).unwrap_err().contains("--cgroup"));
        let nothing = pretend(&[]);
        assert!(Group::create(Some(nothing.path()), 1).unwrap_err().contains("not a memory cgroup"));
        let other = pretend(&[("cgroup.controllers", "cpu io")]);
        assert!(Group::create(Some(other.path()), 1).unwrap_err().contains("no memory controller"));
    }

    #[test]
    fn a_child_writes_its_own_id() {
        let list = tempfile::NamedTempFile::new().unwrap();
        join(&list.path().as_os_str().to_owned()).unwrap();
        assert_eq!(fs::read_to_string(list.path()).unwrap(), std::process::id().to_string());
    }

    /// The child process of `a_child_is_limited`, which joins the group and allocates memory. Without the environment
    /// variable, this test does nothing.
    #[test]
    fn the_child_in_a_group() {
        let Some(bytes) = env::var(ALLOCATE).ok().and_then(|n| n.parse().ok()) else { return };
        assert!(join_if_asked().unwrap());
        let memory = vec![1_u8; bytes];
        assert_eq!(std::hint::black_box(&memory)[bytes / 2], 1);
    }

    /// Uses the real controller. The test is skipped unless a directory was delegated.
    #[test]
    fn a_child_is_limited() {
        const LIMIT: u64 = 64 << 20;
        let parent = delegated(None);
        for (bytes, fits) in [(16_u64 << 20, true), (256 << 20, false)] {
            let group = match Group::create(parent.as_deref(), LIMIT) {
                Ok(group) => group,
                Err(why) => return println!("skipped: {why}"),
            };
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args(["--exact", "cgroup::tests::the_child_in_a_group"])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.env(ALLOCATE, bytes.to_string());
            group.adopt(&mut command);
            let status = command.status().unwrap();
            assert_eq!(status.success(), fits, "{bytes} bytes in {LIMIT}: {status}");
            assert!(group.peak_bytes().is_none_or(|peak| peak <= LIMIT));
            let at = group.directory.clone();
            drop(group);
            assert!(!at.exists());
        }
    }
}
