//! Compiles the C face of libfabric and links the library: the one that `make setup` builds into the cache
//! (static), or with `WEIR_LIBFABRIC=system` the one that pkg-config finds (a vendor's, on Slingshot systems).

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

/// Prefixes that `make setup` builds are named after the release and a recipe number.
const PREFIX: &str = "libfabric-2.1.0-";

fn main() {
    println!("cargo:rerun-if-env-changed=WEIR_LIBFABRIC");
    println!("cargo:rerun-if-env-changed=XDG_CACHE_HOME");
    let sources = [
        "shim.c",
        "registration.c",
        "providers.c",
        "queue.c",
        "connection.c",
        "region.c",
        "offer.c",
        "verbs.c",
    ];
    let reference = env::var_os("CARGO_FEATURE_REFERENCE").map(|_| "loop.c");
    let sources = sources.into_iter().chain(reference).map(|file| format!("src/libfabric/{file}"));
    let sources: Vec<String> = sources.collect();
    for source in &sources {
        println!("cargo:rerun-if-changed={source}");
    }
    for header in ["api.h", "fabric.h", "queue.h", "verbs.h"] {
        println!("cargo:rerun-if-changed=src/libfabric/{header}");
    }
    let mut build = cc::Build::new();
    build.files(sources).flag("-std=gnu11").warnings(true).extra_warnings(true);
    if env::var("WEIR_LIBFABRIC").as_deref() == Ok("system") {
        let library = pkg_config::Config::new().atleast_version("2.1").probe("libfabric").unwrap_or_else(|error| {
            eprintln!("WEIR_LIBFABRIC=system, but pkg-config finds no libfabric of version 2.1 or newer: {error}");
            eprintln!("Install its development files, or unset WEIR_LIBFABRIC and run 'make setup'.");
            exit(1);
        });
        build.includes(library.include_paths).compile("weir_fabric_shim");
        mercury();
        return;
    }
    let Some(prefix) = cached() else {
        eprintln!("libfabric is not in the cache ({}/{PREFIX}*). Run 'make setup' once;", cache().display());
        eprintln!("or set WEIR_LIBFABRIC=system to link a libfabric 2.1 or newer that pkg-config finds.");
        exit(1);
    };
    println!("cargo:rerun-if-changed={}", prefix.join("lib/libfabric.a").display());
    build.include(prefix.join("include")).compile("weir_fabric_shim");
    println!("cargo:rustc-link-search=native={}", prefix.join("lib").display());
    println!("cargo:rustc-link-lib=static=fabric");
    mercury();
    for library in ["atomic", "pthread", "dl", "rt"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// Compiles the C face of Mercury and links the library, with the feature.
fn mercury() {
    if env::var_os("CARGO_FEATURE_MERCURY").is_none() {
        return;
    }
    let sources = ["src/mercury/shim.c", "src/mercury/loop.c"];
    for source in sources {
        println!("cargo:rerun-if-changed={source}");
    }
    let folder = pkg_config::get_variable("mercury", "libdir").unwrap_or_default();
    // What a static library needs stands apart in its description.
    let is_static = !Path::new(&folder).join("libmercury.so").exists();
    let library = pkg_config::Config::new().atleast_version("2.4").statik(is_static).probe("mercury");
    let library = library.unwrap_or_else(|error| {
        eprintln!(
            "The feature `mercury` is on, but pkg-config finds no Mercury of version 2.4 or newer: {error}"
        );
        eprintln!("Install it and set PKG_CONFIG_PATH to its lib/pkgconfig, or build without the feature.");
        exit(1);
    });
    let mut build = cc::Build::new();
    // The library's own headers are not free of warnings.
    for folder in library.include_paths {
        build.flag("-isystem").flag(folder);
    }
    let build = build.files(sources).flag("-std=gnu11");
    build.warnings(true).extra_warnings(true).compile("weir_mercury_shim");
}

/// The directory where `make setup` keeps what it builds.
fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map_or_else(PathBuf::new, |home| Path::new(&home).join(".cache"));
    env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map_or_else(home, PathBuf::from).join("weir")
}

/// The newest complete build there.
fn cached() -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache()).ok()?;
    let mut prefixes: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)))
        .filter(|path| path.join("lib/libfabric.a").is_file())
        .collect();
    prefixes.sort();
    prefixes.pop()
}
