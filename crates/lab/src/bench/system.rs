//! Information from the operating system: memory, I/O and CPU time of this process, the machine, the commit, the page
//! cache.
//!
//! The information is read from `/proc`. A value that is not available is 0 or empty.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::engine::Result;
use crate::line::Machine;

/// Resets [`peak_rss_bytes`].
pub fn reset_peak_rss() {
    // Some containers refuse this write. In this case, the reported peak is the peak since the start of the process,
    // which may be too high but not too low.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Peak memory of the process since [`reset_peak_rss`], in bytes.
pub fn peak_rss_bytes() -> u64 {
    status("VmHWM:")
}

/// Resident memory of the process, in bytes.
pub fn rss_bytes() -> u64 {
    status("VmRSS:")
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The operating system's counters for this process: bytes read from and written to block devices (`read_bytes`,
/// `write_bytes`), and the numbers of calls. A page counts as written when it becomes dirty.
pub fn process_io() -> BTreeMap<String, u64> {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let fields = io.lines().filter_map(|line| line.split_once(':'));
    fields.filter_map(|(name, n)| Some((name.to_owned(), n.trim().parse().ok()?))).collect()
}

/// CPU time of this process: user and system time of all threads.
pub fn processor_time() -> Duration {
    // The CPU times are fields 14 and 15 of `stat`, in ticks. The second field may contain spaces and ends with the
    // last parenthesis.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes that the files of a directory occupy on the disk.
///
/// # Errors
/// If the directory cannot be listed.
pub fn disk_bytes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes += disk_bytes(&entry.path())?,
            Ok(meta) => bytes += meta.blocks() * 512,
            // The engine may delete files concurrently.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(bytes)
}

/// Syncs the files of a directory and drops them from the page cache, so that the next read goes to the disk.
///
/// # Errors
/// If a file cannot be opened or synced.
pub fn drop_page_cache(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_page_cache(&path)?;
            continue;
        }
        let file = fs::File::open(&path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// A description of the machine, with the file system of `directory`.
pub fn machine(directory: &Path) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let kib = field(&read("/proc/meminfo"), "MemTotal");
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_bytes: kib.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024,
        system: format!("{} {}", read("/proc/sys/kernel/ostype").trim(), read("/proc/sys/kernel/osrelease").trim()),
        file_system: file_system(directory, &read("/proc/self/mounts")),
    }
}

fn file_system(directory: &Path, mounts: &str) -> String {
    let Ok(path) = directory.canonicalize() else { return String::new() };
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let under = mounts.filter(|(at, _)| path.starts_with(at));
    under.max_by_key(|(at, _)| at.len()).map_or(String::new(), |(_, kind)| kind.to_owned())
}

/// The commit of this build. The text is empty if the program was built outside a git work tree.
pub fn commit() -> &'static str {
    env!("PANDO_COMMIT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_uses_time() {
        assert!(rss_bytes() > 100 << 10 && peak_rss_bytes() >= rss_bytes() / 2);
        let before = processor_time();
        let mut x = 0u64;
        while processor_time() == before {
            x = crate::record::mix(x);
        }
        assert!(processor_time() > before, "{x}");
    }

    #[test]
    fn files_occupy_space_and_can_be_dropped_from_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/file"), vec![7; 100_000]).unwrap();
        drop_page_cache(dir.path()).unwrap();
        assert!(disk_bytes(dir.path()).unwrap() >= 100_000);
    }

    #[test]
    fn the_mount_with_the_longest_path_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let mounts = format!("a / ext4 rw 0 0\nb {} tmpfs rw 0 0\n", path.display());
        assert_eq!(file_system(&path.join("."), &mounts), "tmpfs");
        assert_eq!(file_system(Path::new("/"), &mounts), "ext4");
    }
}
