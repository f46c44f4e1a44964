//! How SPDK is started.

use std::path::PathBuf;

use super::{ConfigError, File, Flags, invalid, parse_size};

/// Least memory of SPDK: its own buffers in their smallest setting, and the transfers of one target.
const SPDK_MEMORY_MIN: u64 = 128 << 20;

/// Most memory of SPDK: 64 MiB of transfers for each of as many targets as an engine has, and as much again.
const SPDK_MEMORY_MAX: u64 = 32 << 30;

/// How SPDK is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpdkConfig {
    /// Its configuration in its own JSON form.
    pub path: PathBuf,
    /// Bytes of memory that it takes.
    pub memory: u64,
    /// Whether that memory is huge pages.
    pub has_huge_pages: bool,
}

/// How SPDK is started, if it is.
pub(super) fn parse(flags: &Flags, file: &File) -> Result<Option<SpdkConfig>, ConfigError> {
    let Some(path) = flags.spdk_config.clone().or_else(|| file.spdk_config.clone()) else { return Ok(None) };
    let text = flags.spdk_memory.as_deref().or(file.spdk_memory.as_deref()).unwrap_or("1GiB");
    let memory = parse_size("spdk_memory", text)?;
    if !(SPDK_MEMORY_MIN..=SPDK_MEMORY_MAX).contains(&memory) {
        let reason = format!("give {SPDK_MEMORY_MIN} to {SPDK_MEMORY_MAX} bytes");
        return Err(invalid("spdk_memory", text, &reason));
    }
    let has_huge_pages = flags.spdk_huge_pages.or(file.spdk_huge_pages).unwrap_or(true);
    Ok(Some(SpdkConfig { path, memory, has_huge_pages }))
}
