//! A process and its memory in a cgroup of their own: what an engine caches in itself and what the system caches for it
//! then come out of one limit, so that LMDB's page cache and RocksDB's block cache weigh the same.
//!
//! ```text
//!   parent: Group::create(delegated, budget + allowance) ─▶ command.env(JOIN, …) ─▶ spawn ─▶ wait ─▶ drop: removed
//!   child:  join_if_asked(), first thing in main: writes its own id into the group, before it holds any memory
//! ```
//!
//! The group is made under a directory that the caller names and owns: being *able* to write elsewhere in the hierarchy,
//! as root is, does not make it ours, and a process that leaves its group escapes what others set there. Both versions
//! of the interface are known by their files.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Tells a child which group to join: the path of the group's list of processes.
pub const JOIN: &str = "PANDO_RIVALS_JOIN";
/// Names the directory under which groups may be made, where the command line does not.
pub const DELEGATED: &str = "PANDO_RIVALS_CGROUP";

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes`.
    One,
    /// `memory.max`.
    Two,
}

/// A memory cgroup, removed when dropped; its processes must have ended by then.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
    version: Version,
    swap_is_off: bool,
}

/// Which interface a directory has; in words why it has none.
fn version_of(parent: &Path) -> Result<Version, String> {
    let at = parent.display();
    if parent.join("memory.limit_in_bytes").exists() {
        return Ok(Version::One);
    }
    let Ok(controllers) = fs::read_to_string(parent.join("cgroup.controllers")) else {
        return Err(format!("{at} is no memory cgroup"));
    };
    if controllers.split_whitespace().all(|c| c != "memory") {
        return Err(format!("{at} has no memory controller"));
    }
    Ok(Version::Two)
}

impl Group {
    /// Makes the group `pando-rivals-PID` under `parent`, limited to `bytes` of memory and no swap.
    ///
    /// # Errors
    /// Why it may not, in words to be printed: no directory named, no memory controller there, no permission.
    pub fn create(parent: Option<&Path>, bytes: u64) -> Result<Self, String> {
        let parent = parent.ok_or_else(|| format!("no cgroup was delegated: name one with --cgroup or {DELEGATED}"))?;
        let version = version_of(parent)?;
        if version == Version::Two {
            // Children have the controller only if their parent hands it on; refused where processes are in the parent.
            set(parent, "cgroup.subtree_control", "+memory")?;
        }
        let directory = parent.join(format!("pando-rivals-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let mut group = Self { directory, version, swap_is_off: false };
        // Dropping removes it if a limit is refused.
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
                // Memory and swap together; a kernel without swap accounting has no such file.
                set(&self.directory, "memory.swappiness", "0")?;
                let both = "memory.memsw.limit_in_bytes";
                if self.directory.join(both).exists() { set(&self.directory, both, &bytes.to_string()) } else { Ok(()) }
            }
            Version::Two => set(&self.directory, "memory.swap.max", "0"),
        }
    }

    /// Makes a command's process join, if it calls [`join_if_asked`].
    pub fn adopt(&self, command: &mut Command) {
        command.env(JOIN, self.directory.join("cgroup.procs"));
    }

    /// Which interface.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Nothing of the group is swapped out.
    pub fn swap_is_off(&self) -> bool {
        self.swap_is_off
    }

    /// The most memory that the group held, page cache included, where the kernel says.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// How many processes of the group were killed at the limit, where the kernel says.
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
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..100 {
            match fs::remove_dir(&self.directory) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => thread::sleep(Duration::from_millis(10)),
                Ok(()) => return,
                Err(_) => break,
            }
        }
        eprintln!("the cgroup {} could not be removed", self.directory.display());
    }
}

fn set(directory: &Path, file: &str, value: &str) -> Result<(), String> {
    let path = directory.join(file);
    fs::write(&path, value).map_err(|e| format!("{} = {value}: {e}", path.display()))
}

/// The directory that may be used: the one given, else the one that the environment names.
pub fn delegated(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| env::var_os(DELEGATED).map(PathBuf::from))
}

/// In a child: joins the group that its parent made for it, if any.
///
/// # Errors
/// If it was asked and may not; then it must not measure.
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

    /// A directory with a controller's files as plain ones: shows what is written where, on any machine.
    fn pretend(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn both_interfaces_are_told_apart() {
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
            fs::create_dir(&group.directory).unwrap(); // a real group has no files to remove
            let at = group.directory.clone();
            drop(group);
            assert!(!at.exists());
        }
    }

    #[test]
    fn refusals_say_why() {
        assert!(Group::create(None, 1).unwrap_err().contains("--cgroup"));
        let nothing = pretend(&[]);
        assert!(Group::create(Some(nothing.path()), 1).unwrap_err().contains("no memory cgroup"));
        let other = pretend(&[("cgroup.controllers", "cpu io")]);
        assert!(Group::create(Some(other.path()), 1).unwrap_err().contains("no memory controller"));
    }

    #[test]
    fn a_child_writes_its_own_id() {
        let list = tempfile::NamedTempFile::new().unwrap();
        join(&list.path().as_os_str().to_owned()).unwrap();
        assert_eq!(fs::read_to_string(list.path()).unwrap(), std::process::id().to_string());
    }

    /// Not a test by itself: joins and holds memory.
    #[test]
    fn the_child_in_a_group() {
        let Some(bytes) = env::var(ALLOCATE).ok().and_then(|n| n.parse().ok()) else { return };
        assert!(join_if_asked().unwrap());
        let memory = vec![1_u8; bytes];
        assert_eq!(std::hint::black_box(&memory)[bytes / 2], 1);
    }

    /// With the real controller; it needs a directory that was delegated to us.
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
