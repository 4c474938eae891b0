//! Files of token ids: raw u16 or u32 as nanoGPT writes them, or with llm.c's header.

use crate::error::{DataError, Result};
use crate::mmap::map;
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Bytes of llm.c's header: 256 numbers of 32 bits.
const HEADER: usize = 1024;
/// (magic, version, bytes of a token) of llm.c's formats.
const FORMATS: [(u32, u32, usize); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// Ids that are looked at to tell the width, at most and at least.
const LOOKED_AT: usize = 8192;
const FEWEST: usize = 32;

/// Width of the ids in a file without header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Width {
    /// 16 bits, little endian.
    #[default]
    U16,
    /// 32 bits, little endian.
    U32,
}

/// A memory-mapped file of token ids.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    start: usize,
    width: usize,
    len: usize,
}

impl TokenFile {
    /// Maps a file; `width` counts where it has no header.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::File`] naming the field of the header, [`DataError::Wide`] where the 16-bit ids look
    /// like 32-bit ones.
    pub fn open(path: &Path, width: Width) -> Result<Self> {
        let map = map(path)?;
        let bad = |field, problem: String| DataError::File { path: path.to_owned(), field, problem };
        let word = |i: usize| map.get(i * 4..i * 4 + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let known = FORMATS.iter().find(|f| word(0) == Some(f.0));
        let Some(&(magic, version, bytes)) = known else {
            let bytes = if width == Width::U16 { 2 } else { 4 };
            if map.len() % bytes != 0 {
                return Err(bad(
                    "length",
                    format!("is {} bytes, no multiple of the {bytes} of a token", map.len()),
                ));
            }
            let len = map.len() / bytes;
            let file = Self { path: path.to_owned(), map, start: 0, width: bytes, len };
            if width == Width::U16 && file.looks_wide() {
                return Err(DataError::Wide { path: file.path });
            }
            return Ok(file);
        };
        if map.len() < HEADER {
            return Err(bad("header", format!("is cut off: the file has {} bytes", map.len())));
        }
        if word(1) != Some(version) {
            return Err(bad(
                "version",
                format!("is {:?}; version {version} belongs to magic {magic}", word(1)),
            ));
        }
        let len = word(2).unwrap_or_default() as usize;
        if len.checked_mul(bytes).and_then(|n| n.checked_add(HEADER)) != Some(map.len()) {
            return Err(bad(
                "number of tokens",
                format!("is {len}, the file has {} bytes of them", map.len() - HEADER),
            ));
        }
        Ok(Self { path: path.to_owned(), map, start: HEADER, width: bytes, len })
    }

    /// Whether the upper halves of 32-bit ids seem to be among these: every second one of many is 0, the others are
    /// not.
    fn looks_wide(&self) -> bool {
        let first = self.len.min(LOOKED_AT);
        let all_zero = |begin: usize| (begin..first).step_by(2).all(|i| self.get(i) == Some(0));
        first >= FEWEST && self.len.is_multiple_of(2) && all_zero(1) && !all_zero(0)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One id; `None` past the end.
    pub fn get(&self, index: usize) -> Option<u32> {
        if index >= self.len {
            return None;
        }
        let at = self.start + index * self.width;
        let bytes = self.map.get(at..at + self.width)?;
        Some(bytes.iter().rev().fold(0, |id, &b| id << 8 | u32::from(b)))
    }

    /// One more than the largest id; reads the whole file.
    pub fn vocab_size(&self) -> usize {
        (0..self.len).filter_map(|i| self.get(i)).max().map_or(0, |id| id as usize + 1)
    }

    /// Checks every id against a vocabulary.
    ///
    /// # Errors
    /// [`DataError::File`] naming the first id that is too large.
    pub fn check(&self, vocab_size: usize) -> Result<()> {
        match (0..self.len).find(|&i| self.get(i).is_some_and(|id| id as usize >= vocab_size)) {
            None => Ok(()),
            Some(i) => Err(DataError::File {
                path: self.path.clone(),
                field: "token",
                problem: format!(
                    "{i} is {:?}, the vocabulary has {vocab_size}",
                    self.get(i).unwrap_or_default()
                ),
            }),
        }
    }
}
