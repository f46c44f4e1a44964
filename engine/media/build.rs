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
    use std::path::Path;

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

    pub fn link() -> Result<(), pkg_config::Error> {
        println!("cargo:rerun-if-changed=src/spdk/shim.c");
        let mut include = Vec::new();
        let mut linked: Vec<String> = Vec::new();
        for module in MODULES.into_iter().chain([SYSTEM]) {
            let found =
                pkg_config::Config::new().cargo_metadata(false).statik(module == SYSTEM).probe(module)?;
            for folder in &found.link_paths {
                println!("cargo:rustc-link-search=native={}", folder.display());
            }
            for library in &found.libs {
                if linked.contains(library) {
                    continue;
                }
                linked.push(library.clone());
                let is_static = found.link_paths.iter().any(|folder| has_archive(folder, library));
                // Subsystems and drivers of SPDK make themselves known when they are loaded: nobody calls them by
                // name.
                let kind =
                    if library.starts_with("spdk_") && is_static { "static:+whole-archive" } else { "dylib" };
                println!("cargo:rustc-link-lib={kind}={library}");
            }
            include.extend(found.include_paths);
        }
        cc::Build::new().file("src/spdk/shim.c").includes(include).warnings(false).compile("weir_spdk");
        Ok(())
    }

    fn has_archive(folder: &Path, library: &str) -> bool {
        folder.join(format!("lib{library}.a")).exists()
    }
}
