//! Memory for recently used small values.

use super::{ConfigError, invalid, parse_size};

/// Default part of the system's memory for the cache: as much again goes to a target's index, and the greater part
/// stays free for data under way and for other programs.
const DEFAULT_DIVISOR: u64 = 16;

/// Most that the cache takes by default, as the index of one target does.
const DEFAULT_MAX: u64 = 1 << 30;

/// Least memory of a target's cache, if it has one: some 250 values of a block.
const TARGET_MIN: u64 = 1 << 20;

/// Bytes of memory that the process may use: those of the machine, or of its control group where that has less. `None`
/// where neither is known.
fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        // A container sees its own group at the root.
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        let limit = |path: &str| std::fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok();
        let found = limit(path.trim_end_matches('/')).or_else(|| limit(""))?;
        found.trim().parse().ok()
    });
    machine.into_iter().chain(group).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn machine_memory(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn default_of(available: Option<u64>, targets: u32) -> u64 {
    let wanted = (available.unwrap_or(0) / DEFAULT_DIVISOR).min(DEFAULT_MAX);
    if wanted / u64::from(targets.max(1)) < TARGET_MIN { 0 } else { wanted }
}

/// What `cache_memory` says of an engine with so many targets: bytes of all of them together.
pub(super) fn cache_memory(text: Option<&str>, targets: u32) -> Result<u64, ConfigError> {
    let Some(text) = text else { return Ok(default_of(available(), targets)) };
    let bytes = parse_size("cache_memory", text)?;
    let least = TARGET_MIN * u64::from(targets);
    if bytes == 0 || bytes >= least {
        return Ok(bytes);
    }
    let reason = format!("{targets} targets need at least {least} bytes; 0 turns the cache off");
    Err(invalid("cache_memory", text, &reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_part_of_the_memory_within_bounds() {
        assert_eq!(default_of(Some(8 << 30), 2), 512 << 20);
        assert_eq!(default_of(Some(1 << 40), 2), DEFAULT_MAX);
        assert_eq!(default_of(Some(64 << 20), 8), 0, "half a mebibyte for each target helps nobody");
        assert_eq!(default_of(None, 1), 0);
        assert_eq!(machine_memory("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(machine_memory("MemTotal: many"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20), "this machine has memory");
    }

    #[test]
    fn what_is_asked_for_is_divided_or_refused() {
        assert_eq!(cache_memory(Some("64MiB"), 4).ok(), Some(64 << 20));
        assert_eq!(cache_memory(Some("0"), 4).ok(), Some(0));
        let refused = cache_memory(Some("3MiB"), 4).expect_err("too little").to_string();
        assert!(refused.contains("`cache_memory` = \"3MiB\"") && refused.contains("4194304"), "{refused}");
    }
}
