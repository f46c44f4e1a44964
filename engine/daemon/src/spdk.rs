//! Requirements of SPDK, checked before it is started: SPDK itself reports what is missing only on standard error, and
//! in its own words.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weir_media::MediaError;
use weir_media::spdk::{SpdkOptions, start};

use crate::config::SpdkConfig;

/// Where the system describes its devices and memory.
const SYSFS: &str = "/sys";

/// The call in SPDK's configuration that gives it a drive.
const ATTACH: &str = "bdev_nvme_attach_controller";

/// Name of the kernel's own driver of drives.
const KERNEL_DRIVER: &str = "nvme";

/// Why SPDK isn't started.
#[derive(Debug, thiserror::Error)]
pub enum SpdkError {
    /// Its configuration.
    #[error("SPDK's configuration {path} can't be used: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A drive that isn't there.
    #[error(
        "SPDK's configuration names a drive at {address}, but there is none; `lspci -D` lists drives with their addresses"
    )]
    NoDrive {
        /// PCI address.
        address: String,
    },
    /// A drive that the kernel has, or no driver.
    #[error(
        "the drive at {address} {holder}: give it to vfio-pci or uio_pci_generic (SPDK's scripts/setup.sh does), or leave SPDK out and name its character device, such as /dev/ng0n1, in `devices`"
    )]
    Held {
        /// PCI address.
        address: String,
        /// The driver that has it.
        holder: String,
    },
    /// Huge pages.
    #[error(
        "SPDK wants {wanted} MiB of huge pages, and {free} MiB are free: set vm.nr_hugepages, a smaller `spdk_memory`, or `spdk_huge_pages = false` for devices in memory"
    )]
    HugePages {
        /// Wanted, in MiB.
        wanted: u64,
        /// Free, in MiB.
        free: u64,
    },
    /// SPDK itself.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// Starts SPDK for this process.
///
/// # Errors
/// When the machine lacks what the configuration needs, or SPDK doesn't start.
pub fn run(config: &SpdkConfig) -> Result<(), SpdkError> {
    check(config, Path::new(SYSFS))?;
    let memory_mib = u32::try_from(config.memory >> 20).unwrap_or(u32::MAX);
    let options =
        SpdkOptions { config: config.path.clone(), memory_mib, has_huge_pages: config.has_huge_pages };
    Ok(start(&options)?)
}

fn check(config: &SpdkConfig, sysfs: &Path) -> Result<(), SpdkError> {
    let wrong = |reason: String| SpdkError::Config { path: config.path.clone(), reason };
    let text = fs::read_to_string(&config.path).map_err(|error| wrong(error.to_string()))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let drives = drives(&json);
    if !drives.is_empty() && !config.has_huge_pages {
        let reason = "it names drives, which need huge pages: set `spdk_huge_pages = true`";
        return Err(wrong(reason.to_owned()));
    }
    drives.iter().try_for_each(|address| check_drive(address, sysfs))?;
    let (wanted, free) = (config.memory >> 20, free_huge_pages(sysfs) >> 20);
    if config.has_huge_pages && free < wanted {
        return Err(SpdkError::HugePages { wanted, free });
    }
    Ok(())
}

/// PCI addresses of the drives that the configuration attaches.
fn drives(json: &Value) -> Vec<String> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let calls = list(json, "subsystems").into_iter().flat_map(|subsystem| list(&subsystem, "config"));
    let drives = calls.filter(|call| call["method"] == ATTACH).filter_map(|call| {
        let params = &call["params"];
        let is_local = params["trtype"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("pcie"));
        let address = params["traddr"].as_str().filter(|_| is_local)?;
        // SPDK takes them without the domain, too.
        let is_short = address.matches(':').count() == 1;
        Some(if is_short { format!("0000:{address}") } else { address.to_owned() })
    });
    drives.collect()
}

fn check_drive(address: &str, sysfs: &Path) -> Result<(), SpdkError> {
    let is_plain = address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    let folder = sysfs.join("bus/pci/devices").join(address);
    if !is_plain || !folder.is_dir() {
        return Err(SpdkError::NoDrive { address: address.to_owned() });
    }
    let held = |holder: &str| Err(SpdkError::Held { address: address.to_owned(), holder: holder.to_owned() });
    match fs::read_link(folder.join("driver")) {
        Err(_) => held("has no driver"),
        Ok(driver) if driver.ends_with(KERNEL_DRIVER) => held("is bound to the kernel's driver"),
        Ok(_) => Ok(()),
    }
}

/// Bytes of free huge pages of all sizes.
fn free_huge_pages(sysfs: &Path) -> u64 {
    let folder = fs::read_dir(sysfs.join("kernel/mm/hugepages"));
    let sizes = folder.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let size: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 = fs::read_to_string(entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some((size << 10).saturating_mul(free))
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with a drive of the kernel at 1, one of vfio-pci at 2, one without a driver at 3, and 64 MiB of huge
    /// pages.
    fn machine(folder: &Path) {
        for (number, driver) in [(1, Some("nvme")), (2, Some("vfio-pci")), (3, None)] {
            let device = folder.join(format!("bus/pci/devices/0000:0{number}:00.0"));
            fs::create_dir_all(&device).expect("made");
            if let Some(driver) = driver {
                let to = Path::new("../../../bus/pci/drivers").join(driver);
                std::os::unix::fs::symlink(to, device.join("driver")).expect("linked");
            }
        }
        let pages = folder.join("kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pages).expect("made");
        fs::write(pages.join("free_hugepages"), "32\n").expect("written");
    }

    fn attach(address: &str) -> String {
        let call = format!(
            r#"{{"method": "{ATTACH}", "params": {{"name": "Nvme0", "trtype": "PCIe", "traddr": "{address}"}}}}"#
        );
        format!(r#"{{"subsystems": [{{"subsystem": "sock"}}, {{"subsystem": "bdev", "config": [{call}]}}]}}"#)
    }

    #[test]
    fn what_the_machine_lacks_is_said_before_spdk_starts() {
        let folder = tempfile::tempdir().expect("a folder");
        machine(folder.path());
        let path = folder.path().join("spdk.json");
        let with = |text: &str, memory: u64, has_huge_pages: bool| {
            fs::write(&path, text).expect("written");
            let config = SpdkConfig { path: path.clone(), memory, has_huge_pages };
            check(&config, folder.path()).map_err(|error| error.to_string())
        };
        let mib = 1 << 20;
        assert_eq!(with(&attach("0000:02:00.0"), 64 * mib, true), Ok(()));
        assert_eq!(with(&attach("02:00.0"), 64 * mib, true), Ok(()));
        assert_eq!(with("{}", 512 * mib, false), Ok(()));
        for (text, memory, huge, words) in [
            (attach("0000:01:00.0"), 64, true, "is bound to the kernel's driver"),
            (attach("0000:03:00.0"), 64, true, "has no driver"),
            (attach("0000:07:00.0"), 64, true, "names a drive at 0000:07:00.0"),
            (attach("../0000:02:00.0"), 64, true, "names a drive at"),
            (attach("0000:02:00.0"), 64, false, "drives, which need huge pages"),
            (attach("0000:02:00.0"), 65, true, "wants 65 MiB of huge pages, and 64 MiB are free"),
            ("{".to_owned(), 64, true, "spdk.json can't be used"),
        ] {
            let refused = with(&text, memory * mib, huge).expect_err("lacking");
            assert!(refused.contains(words), "{refused}");
        }
        fs::remove_file(&path).expect("there");
        let config = SpdkConfig { path: path.clone(), memory: mib, has_huge_pages: false };
        assert!(check(&config, folder.path()).is_err(), "no configuration");
    }
}
