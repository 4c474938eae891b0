use super::io;
use crate::error::Result;
use std::fs::File;
use std::path::Path;

/// Writes a temporary file in the same folder, syncs it and renames it over `path`, then syncs the folder. A failure
/// before the rename leaves an older file as it was and no temporary file behind.
///
/// # Errors
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn atomic_write(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-");
    // Readable as the user's umask says, like any file; the default of temporary files is the owner alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.tempfile_in(folder).map_err(io(path, "create a temporary file beside"))?;
    write(temporary.as_file_mut())
        .and_then(|()| temporary.as_file().sync_all())
        .map_err(io(path, "write"))?;
    temporary.persist(path).map_err(|e| io(path, "replace")(e.error))?;
    // The rename is durable once the folder is; not every system can open a folder.
    match File::open(folder) {
        Ok(folder) => folder.sync_all().map_err(io(path, "sync the folder of")),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, Write};

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        atomic_write(&path, |f| f.write_all(b"old")).unwrap();
        atomic_write(&path, |f| f.write_all(b"ha").and_then(|()| Err(Error::other("disk full"))))
            .unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        atomic_write(&path, |f| f.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let plain = folder.path().join("plain");
            std::fs::write(&plain, b"").unwrap();
            let mode = |p| std::fs::metadata(p).unwrap().permissions().mode();
            assert_eq!(mode(&path), mode(&plain), "as readable as any new file");
        }
        assert!(atomic_write(folder.path(), |_| Ok(())).is_err(), "a folder is no file");
        assert!(atomic_write(&folder.path().join("absent/x"), |_| Ok(())).is_err());
    }
}
