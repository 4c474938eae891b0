//! The one memory map of this crate.
#![allow(unsafe_code)]

use crate::error::{Result, io};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// Maps a file for reading.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(io(path, "open"))?;
    // SAFETY: the map is private to this process and read as bytes only. Another process that cuts the file off while it
    // is mapped ends this one with a bus error; that is the documented condition of mapping a file.
    unsafe { Mmap::map(&file) }.map_err(io(path, "map"))
}
