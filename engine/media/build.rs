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
            for folder in &found.link_paths {
                println!("cargo:rustc-link-search=native={}", folder.display());
            }
            let has_archive = |library: &str| {
                found.link_paths.iter().any(|folder| folder.join(format!("lib{library}.a")).exists())
            };
            for library in &found.libs {
                if linked.contains(library) {
                    continue;
                }
                linked.push(library.clone());
                let is_whole = WHOLE.iter().any(|prefix| library.starts_with(prefix));
                if is_whole && !has_archive(library) {
                    return Err(format!("there is no lib{library}.a, and only such libraries are linked"));
                }
                let kind = if is_whole { "static:+whole-archive" } else { "dylib" };
                println!("cargo:rustc-link-lib={kind}={library}");
            }
            include.extend(found.include_paths);
        }
        cc::Build::new().file("src/spdk/shim.c").includes(include).warnings(false).compile("weir_spdk");
        Ok(())
    }
}
