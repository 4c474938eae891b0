//! Writing a file whole or not at all.

use crate::error::{Result, TrainerError};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Writes a temporary file in the same folder, syncs it and renames it over `path`, then syncs the folder. A failure
/// at any point leaves an older file as it was and no temporary file behind.
pub(crate) fn atomic_write(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let io = |action| move |source| TrainerError::Io { path: path.to_owned(), action, source };
    let temporary = temporary_name(path);
    let mut file = File::create(&temporary).map_err(io("create a temporary file beside"))?;
    let written = write(&mut file).and_then(|()| file.sync_all());
    drop(file);
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = renamed {
        // The first error is the one to report; a leftover is harmless.
        drop(fs::remove_file(&temporary));
        return Err(io("write")(error));
    }
    // The rename itself is durable once the folder is; not every system can open a folder.
    if let Some(Ok(folder)) = folder_of(path).map(File::open) {
        folder.sync_all().map_err(io("sync the folder of"))?;
    }
    Ok(())
}

fn folder_of(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    Some(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, Write};

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.state");
        atomic_write(&path, |f| f.write_all(b"old")).unwrap();
        let half = |f: &mut File| f.write_all(b"ha").and_then(|()| Err(Error::other("disk full")));
        let error = atomic_write(&path, half).unwrap_err();
        assert!(matches!(error, TrainerError::Io { action: "write", .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        atomic_write(&path, |f| f.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let absent = folder.path().join("absent").join("run.state");
        assert!(matches!(atomic_write(&absent, |_| Ok(())), Err(TrainerError::Io { .. })));
        assert!(atomic_write(folder.path(), |_| Ok(())).is_err(), "a folder is no file");
    }
}
