//! Pool maps beside a target's device, in files of the data directory: `target-N.map-POOL`, with the pool's UUID.

use std::fs;
use std::io;
use std::path::PathBuf;

use weir_pool::MapBackup;
use weir_proto::PoolId;

use crate::durable;

/// Map backups in files beside the target's own.
#[derive(Clone, Debug)]
pub struct MapBackupFile {
    target: PathBuf,
}

impl MapBackupFile {
    /// The map backups beside a target's file or link.
    #[must_use]
    pub const fn new(target: PathBuf) -> Self {
        Self { target }
    }

    fn path(&self, pool: PoolId) -> PathBuf {
        self.target.with_extension(format!("map-{pool}"))
    }
}

impl MapBackup for MapBackupFile {
    fn read(&self, pool: PoolId) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(pool)) {
            Ok(map) => Ok(Some(map)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, pool: PoolId, map: &[u8]) -> io::Result<()> {
        durable::write(&self.path(pool), map)
    }

    fn forget(&self, pool: PoolId) -> io::Result<()> {
        durable::remove(&self.path(pool)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_kept_until_it_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let backup = || MapBackupFile::new(folder.path().join("target-0.weir"));
        let (one, other) = (PoolId(uuid::Uuid::from_u128(1)), PoolId(uuid::Uuid::from_u128(2)));
        assert_eq!(backup().read(one).expect("the folder is there"), None);
        backup().keep(one, b"first").expect("it is written");
        backup().keep(one, b"second").expect("it is written");
        assert_eq!(backup().read(one).expect("it is there").as_deref(), Some(b"second".as_slice()));
        assert_eq!(backup().read(other).expect("the folder is there"), None);
        for _ in 0..2 {
            backup().forget(one).expect("the folder is there");
        }
        assert_eq!(backup().read(one).expect("the folder is there"), None);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        fs::create_dir(folder.path().join(format!("target-0.map-{one}"))).expect("something else");
        assert!(backup().read(one).is_err());
    }
}
