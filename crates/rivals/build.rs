//! Compiles the shim of WiredTiger and links Debian's LevelDB and WiredTiger. Also sets environment variables with the
//! versions of the linked libraries, which `configuration()` prints.

use std::env;
use std::fs;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    for name in ["rocksdb", "heed", "redb", "fjall", "lsm-tree", "bf-tree"] {
        let version = locked(&lock, name).unwrap_or("unknown");
        println!("cargo:rustc-env=RIVALS_{}={version}", name.replace('-', "_").to_uppercase());
    }
    if env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        println!("cargo:rerun-if-env-changed=ROCKSDB_INCLUDE_DIR");
        let version = rocksdb_version().unwrap_or_else(|| "unknown".into());
        println!("cargo:rustc-env=RIVALS_LIBROCKSDB={version}");
    }
    if env::var_os("CARGO_FEATURE_LEVELDB").is_some() {
        println!("cargo:rustc-link-lib=dylib=leveldb");
    }
    #[cfg(feature = "wiredtiger")]
    {
        println!("cargo:rerun-if-changed=shim/wiredtiger.c");
        cc::Build::new().file("shim/wiredtiger.c").warnings(true).extra_warnings(true).compile("rivals_wiredtiger");
        println!("cargo:rustc-link-lib=dylib=wiredtiger");
    }
}

/// The version of a crate in the lock file.
fn locked<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, entry) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    entry.split('"').next()
}

/// The version in the headers of the system's RocksDB.
fn rocksdb_version() -> Option<String> {
    let include = env::var("ROCKSDB_INCLUDE_DIR").ok()?;
    let text = fs::read_to_string(format!("{include}/rocksdb/version.h")).ok()?;
    let part = |name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(&format!("#define ROCKSDB_{name} "))?.trim().to_owned()))
    };
    Some(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
}
