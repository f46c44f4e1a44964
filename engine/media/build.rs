//! With the feature `spdk`: finds SPDK by pkg-config, compiles the C side, and links.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "spdk")]
    if let Err(reason) = spdk::link() {
        println!(
            "cargo:error=the feature `spdk` needs SPDK 23.05 or newer: {reason}; install it, or name the directory of \
             its pkg-config files in PKG_CONFIG_PATH, or build without the feature"
        );
    }
}

#[cfg(feature = "spdk")]
mod spdk {
    use std::path::{Path, PathBuf};

    /// What is linked: the device layer with its subsystem, the drivers of NVMe and of devices in memory, and the
    /// environment.
    const MODULES: [&str; 7] = [
        "spdk_event_bdev",
        "spdk_event_accel",
        "spdk_bdev_nvme",
        "spdk_bdev_malloc",
        "spdk_env_dpdk",
        "spdk_rpc",
        "spdk_init",
    ];

    /// Libraries of the system, which SPDK's own pkg-config file names privately.
    const SYSTEM: &str = "spdk_syslibs";

    /// Libraries of Intel's, if SPDK was built with them. It names them by paths into the folder that it was built in,
    /// where there may be nothing any more, and installs them beside its own.
    const BESIDE: [&str; 2] = ["isal", "isal_crypto"];

    /// How the names of libraries begin of which all is linked: SPDK's subsystems and drivers, and DPDK's buses and kinds
    /// of queues, make themselves known when they are loaded, and nobody calls them by name.
    const WHOLE: [&str; 2] = ["spdk_", "rte_"];

    pub fn link() -> Result<(), String> {
        println!("cargo:rerun-if-changed=src/spdk/shim.c");
        let mut include = Vec::new();
        let mut linked: Vec<String> = Vec::new();
        for module in MODULES.into_iter().chain([SYSTEM]) {
            let mut config = pkg_config::Config::new();
            let found = config.cargo_metadata(false).statik(module == SYSTEM).probe(module);
            let found = found.map_err(|error| error.to_string())?;
            let by_path = found.link_files.iter().filter_map(|file| file.parent());
            let folders: Vec<&Path> = found.link_paths.iter().map(PathBuf::as_path).chain(by_path).collect();
            for folder in &folders {
                println!("cargo:rustc-link-search=native={}", folder.display());
            }
            let has_archive =
                |library: &str| folders.iter().any(|folder| folder.join(format!("lib{library}.a")).exists());
            let beside = BESIDE.into_iter().filter(|library| module == SYSTEM && has_archive(library));
            for library in found.libs.iter().map(String::as_str).chain(beside) {
                if linked.iter().any(|known| known == library) {
                    continue;
                }
                linked.push(library.to_owned());
                let is_whole = WHOLE.iter().any(|prefix| library.starts_with(prefix));
                let kind = match (is_whole, BESIDE.contains(&library)) {
                    (true, _) if !has_archive(library) => {
                        return Err(format!(
                            "there is no lib{library}.a, and only such libraries are linked"
                        ));
                    }
                    (true, _) => "static:+whole-archive",
                    (false, true) => "static",
                    (false, false) => "dylib",
                };
                println!("cargo:rustc-link-lib={kind}={library}");
            }
            include.extend(found.include_paths);
        }
        cc::Build::new().file("src/spdk/shim.c").includes(include).warnings(false).compile("weir_spdk");
        Ok(())
    }
}
