//! Programs that pass a mount, by turns with the same reads and writes through DFS and through the mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::{Client, TURN, TURNS, output, unexpected};
use crate::pairs::{Pairs, median};
use crate::report::{BenchError, Report};

/// Starts of a program in one turn.
const STARTS: u32 = 50;

/// A mount, and the libraries by which programs pass it.
struct Passing<'c> {
    client: &'c Client,
    library: PathBuf,
    /// The one of data and names.
    of_names: PathBuf,
    file: PathBuf,
}

/// Measures and adds the rows.
pub fn rows(client: &Client, report: &mut Report) -> Result<(), BenchError> {
    let directory = client.folder.join("passed");
    std::fs::create_dir_all(&directory).map_err(BenchError::file("make", &directory))?;
    // The first figure of a file makes the container.
    client.own("file-write")?;
    let weir = |arguments: &[&str]| {
        let mut command = Command::new(&client.weir);
        output(command.arg("--attach").arg(client.folder.join("client.json")).args(arguments).arg(&directory))
    };
    weir(&["mount", "tank", "bench-files"])?;
    let measured = measure(client, &directory, report);
    let unmounted = weir(&["umount"]);
    measured.and(unmounted.map(drop))?;
    // The system removes only what it has made itself.
    std::fs::remove_dir(&directory).map_err(BenchError::file("remove", &directory))
}

fn measure(client: &Client, directory: &Path, report: &mut Report) -> Result<(), BenchError> {
    let installed = client.operations.with_file_name("installed/lib/libweir_intercept.so");
    let library = installed.canonicalize().map_err(BenchError::file("find", &installed))?;
    let of_names = library.with_file_name("libpil4dfs.so");
    let passing = Passing { client, library, of_names, file: directory.join("posix") };
    let Passing { library, .. } = &passing;
    let with = Some(library.as_path());
    for (size, said, unit) in [("", "1 MiB", "MiB/s"), (":small", "4 KiB", "op/s")] {
        for operation in ["write", "read"] {
            let row = format!("interception: {operation} {said}");
            let (posix, dfs) = (format!("posix-{operation}{size}"), format!("file-{operation}{size}"));
            let (mut beside_dfs, mut beside_mount) = (Pairs::default(), Pairs::default());
            for _ in 0..TURNS {
                let own = passing.figure(&posix, with)?;
                beside_dfs.add(own, client.own(&dfs)?);
                beside_mount.add(own, passing.figure(&posix, None)?);
            }
            beside_dfs.rate(report, &row, unit, "DFS", Some(">= 0.9"));
            beside_mount.rate(report, &format!("{row}, beside the mount"), unit, "mount", None);
        }
    }
    names(&passing, report)?;
    let first: Result<Vec<f64>, BenchError> =
        (0..TURNS).map(|_| passing.figure("posix-first-seconds", with)).collect();
    report.figure("interception: first write of a program", median(first?) * 1e3, "ms", Some("<= 20"));
    let mut starts = Pairs::default();
    for _ in 0..TURNS {
        starts.add(passing.starts(true)?, passing.starts(false)?);
    }
    starts.time(report, "interception: start of a program without such files", "without the library", None);
    Ok(())
}

/// Calls on names. A file is created and removed by the kernel, whatever the library.
fn names(passing: &Passing<'_>, report: &mut Report) -> Result<(), BenchError> {
    let with = Some(passing.of_names.as_path());
    for (figure, said) in [("stat", "stat"), ("mkdir", "mkdir"), ("turn", "create and remove")] {
        let row = format!("interception: {said}");
        let (posix, dfs) = (format!("posix-{figure}"), format!("file-{figure}"));
        let (mut beside_dfs, mut beside_mount) = (Pairs::default(), Pairs::default());
        for _ in 0..TURNS {
            let own = passing.figure(&posix, with)?;
            beside_dfs.add(own, passing.client.own(&dfs)?);
            beside_mount.add(own, passing.figure(&posix, None)?);
        }
        beside_dfs.rate(report, &row, "op/s", "DFS", None);
        beside_mount.rate(report, &format!("{row}, beside the mount"), "op/s", "mount", None);
    }
    Ok(())
}

impl Passing<'_> {
    /// A figure of calls on the file, past the mount by a library or through it.
    fn figure(&self, figure: &str, library: Option<&Path>) -> Result<f64, BenchError> {
        let mut command = Command::new(&self.client.operations);
        command.arg(&self.file).args([figure, TURN]);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let printed = output(&mut command)?;
        printed.trim().parse().map_err(|_| unexpected(figure, &printed))
    }

    /// Starts of a program in a second.
    fn starts(&self, with: bool) -> Result<f64, BenchError> {
        let began = Instant::now();
        for _ in 0..STARTS {
            let mut command = Command::new("/bin/true");
            if with {
                command.env("LD_PRELOAD", &self.library);
            }
            output(&mut command)?;
        }
        Ok(f64::from(STARTS) / began.elapsed().as_secs_f64())
    }
}
