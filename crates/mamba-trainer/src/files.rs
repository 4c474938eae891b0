use crate::error::{Result, TrainerError};
use std::fs::File;
use std::path::Path;

pub(crate) fn atomic_write(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let io = |action| move |source| TrainerError::Io { path: path.to_owned(), action, source };
    let temp = path.with_extension("tmp");
    let mut file = File::create(&temp).map_err(io("create"))?;
    write(&mut file).map_err(io("write"))?;
    file.sync_all().map_err(io("sync"))?;
    std::fs::rename(&temp, path).map_err(io("rename"))
}
