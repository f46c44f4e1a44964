//! Finds the attach file of a system: the daemon is given one file, or a folder of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::report::{FailureKind, MountFailure};

/// Names of attach files in a folder or its subfolders.
const FILE_NAMES: [&str; 2] = ["client.json", "attach.json"];

/// What the names of attach files end with that share a folder, such as `weir.client.json`.
const FILE_SUFFIX: &str = ".client.json";

/// Largest attach file that is read, in bytes: what a Kubernetes Secret may hold.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where attach files are. They may come, change and go at any time: each look-up reads what is there.
#[derive(Clone, Debug)]
pub struct Attachments {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Named {
    system: String,
}

impl Attachments {
    /// Attach files at a path: a file, or a folder that holds one, or subfolders that do.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The attach file of a system; the empty name means the only one there is.
    ///
    /// # Errors
    /// When there is none yet, or none of that name, or the name is needed to choose.
    pub fn find(&self, system: &str) -> Result<PathBuf, MountFailure> {
        let files = self.files();
        if files.is_empty() {
            return Err(MountFailure::new(
                FailureKind::Unavailable,
                format!(
                    "no attach file at {} yet: the operator writes it once a StorageCluster has engines; see its conditions",
                    self.path.display()
                ),
            ));
        }
        if system.is_empty() && files.len() == 1 {
            return Ok(files.into_iter().next().unwrap_or_default());
        }
        let mut names = Vec::new();
        for file in files {
            match name_of(&file) {
                Ok(name) if name == system => return Ok(file),
                Ok(name) => names.push(name),
                Err(reason) => names.push(format!("({} cannot be read: {reason})", file.display())),
            }
        }
        let served = names.join(", ");
        Err(MountFailure::new(
            FailureKind::FailedPrecondition,
            if system.is_empty() {
                format!("several systems are served ({served}): name one")
            } else {
                format!("system \"{system}\" is not served on this node; served: {served}")
            },
        ))
    }

    fn files(&self) -> Vec<PathBuf> {
        if self.path.is_file() {
            return vec![self.path.clone()];
        }
        // A file that has not appeared yet has a folder that may hold others.
        let mut found: Vec<PathBuf> = attach_file(&self.path).into_iter().collect();
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        // Names that begin with ".." belong to the kubelet's way of replacing a Secret in one step.
        let subfolders = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".."));
        for entry in subfolders {
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes()) && path.is_file() {
                found.push(path);
            } else {
                found.extend(attach_file(&path));
            }
        }
        found.sort();
        found
    }
}

fn attach_file(folder: &Path) -> Option<PathBuf> {
    FILE_NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

fn name_of(file: &Path) -> Result<String, String> {
    let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes, more than {FILE_BYTES_MAX}"));
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    serde_json::from_str::<Named>(&text).map(|named| named.system).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, system: &str) {
        fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
        fs::write(path, format!("{{\"system\":\"{system}\"}}")).expect("written");
    }

    #[test]
    fn the_only_system_needs_no_name_and_one_of_several_does() {
        let folder = tempfile::tempdir().expect("made");
        let attachments = Attachments::new(folder.path().to_owned());
        assert_eq!(attachments.find("").expect_err("none yet").kind, FailureKind::Unavailable);
        write(&folder.path().join("a/client.json"), "alpha");
        assert_eq!(attachments.find("").expect("one"), folder.path().join("a/client.json"));
        assert_eq!(attachments.find("beta").expect_err("other").kind, FailureKind::FailedPrecondition);
        write(&folder.path().join("b/attach.json"), "beta");
        assert_eq!(attachments.find("beta").expect("named"), folder.path().join("b/attach.json"));
        let error = attachments.find("").expect_err("ambiguous");
        assert!(error.message.contains("alpha, beta"), "{error}");
    }

    #[test]
    fn systems_that_share_a_folder_are_told_apart_and_may_come_later() {
        let folder = tempfile::tempdir().expect("made");
        let attachments = Attachments::new(folder.path().to_owned());
        write(&folder.path().join("alpha.client.json"), "alpha");
        assert!(attachments.find("beta").is_err());
        write(&folder.path().join("beta.client.json"), "beta");
        assert_eq!(attachments.find("beta").expect("there"), folder.path().join("beta.client.json"));
        assert_eq!(attachments.find("alpha").expect("there"), folder.path().join("alpha.client.json"));
    }

    #[test]
    fn a_single_file_is_used_as_it_is() {
        let folder = tempfile::tempdir().expect("made");
        let file = folder.path().join("client.json");
        let attachments = Attachments::new(file.clone());
        assert_eq!(attachments.find("").expect_err("absent").kind, FailureKind::Unavailable);
        write(&file, "weir");
        assert_eq!(attachments.find("weir").expect("there"), file);
    }
}
