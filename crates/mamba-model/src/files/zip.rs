//! The directory of a zip archive whose entries are stored as they are. Nothing is ever unpacked, so an archive
//! cannot hold more than its own bytes. Records and offsets: PKWARE's application note, sections 4.3.7 and 4.3.12 to
//! 4.3.16.

use super::{bad, io, open};
use crate::error::Result;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest directory and longest entry that are read whole.
pub(super) const MAX_WHOLE: u64 = 16 << 20;
/// Bytes of the end record, and the longest comment behind it.
const END: usize = 22;
const MAX_COMMENT: u64 = 1 << 16;

/// Where an entry lies.
#[derive(Debug, Clone, Copy)]
struct Entry {
    header: u64,
    length: u64,
}

/// An open archive.
pub(super) struct Archive {
    path: PathBuf,
    pub file: File,
    pub size: u64,
    entries: BTreeMap<String, Entry>,
}

/// Place and size of the directory.
struct Directory {
    count: u64,
    start: u64,
    length: u64,
}

fn number(bytes: &[u8], at: usize, n: usize) -> u64 {
    bytes.get(at..at + n).unwrap_or_default().iter().rev().fold(0, |x, &b| x << 8 | u64::from(b))
}

impl Archive {
    /// Opens an archive and reads its directory.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, size) = open(path)?;
        let mut this = Self { path: path.to_owned(), file, size, entries: BTreeMap::new() };
        let directory = this.find_directory()?;
        if directory.length > MAX_WHOLE {
            let problem =
                format!("has a directory of {} bytes, at most {MAX_WHOLE} are read", directory.length);
            return Err(bad(path, "archive", problem));
        }
        let bytes = this.read_at("archive", directory.start, directory.length)?;
        let mut at = 0;
        for _ in 0..directory.count {
            at += this.add_entry(bytes.get(at..).unwrap_or_default())?;
        }
        match at == bytes.len() {
            true => Ok(this),
            false => Err(bad(path, "archive", "has bytes in its directory that belong to no entry")),
        }
    }

    /// Names of the entries.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// First byte and length of an entry's data; `asker` is what an error names.
    pub fn find(&mut self, asker: &str, name: &str) -> Result<Option<(u64, u64)>> {
        let Some(&Entry { header, length }) = self.entries.get(name) else { return Ok(None) };
        let local = self.read_at(asker, header, 30)?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(bad(&self.path, asker, format!("has a damaged local header of `{name}`")));
        }
        let start = header + 30 + number(&local, 26, 2) + number(&local, 28, 2);
        match start.checked_add(length).is_some_and(|end| end <= self.size) {
            true => Ok(Some((start, length))),
            false => Err(bad(&self.path, asker, format!("reaches beyond the file of {} bytes", self.size))),
        }
    }

    /// A small entry's bytes.
    pub fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.find(name, name)? {
            Some((_, length)) if length > MAX_WHOLE => {
                Err(bad(&self.path, name, format!("has {length} bytes, at most {MAX_WHOLE} are read")))
            }
            Some((start, length)) => self.read_at(name, start, length).map(Some),
            None => Ok(None),
        }
    }

    fn read_at(&mut self, asker: &str, start: u64, length: u64) -> Result<Vec<u8>> {
        if start.checked_add(length).is_none_or(|end| end > self.size) {
            let problem = format!(
                "speaks of {length} bytes from {start} on; the file has {}: cut off or doctored",
                self.size
            );
            return Err(bad(&self.path, asker, problem));
        }
        let mut bytes = vec![0; length as usize];
        self.file
            .seek(SeekFrom::Start(start))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(io(&self.path, "read"))?;
        Ok(bytes)
    }

    /// Reads the end record, or the 64-bit one that it points to.
    fn find_directory(&mut self) -> Result<Directory> {
        let tail_start = self.size.saturating_sub(END as u64 + MAX_COMMENT);
        let tail = self.read_at("archive", tail_start, self.size - tail_start)?;
        let is_end = |at: &usize| {
            tail[*at..].starts_with(b"PK\x05\x06")
                && at + END + number(&tail, at + 20, 2) as usize == tail.len()
        };
        let Some(at) = (0..(tail.len() + 1).saturating_sub(END)).rev().find(is_end) else {
            let problem = "has no end record; this is no file of torch.save (1.6 or newer), or it is cut off";
            return Err(bad(&self.path, "archive", problem));
        };
        let directory = Directory {
            count: number(&tail, at + 10, 2),
            length: number(&tail, at + 12, 4),
            start: number(&tail, at + 16, 4),
        };
        let full =
            directory.count == 0xffff || directory.length == 0xffff_ffff || directory.start == 0xffff_ffff;
        if !full {
            return Ok(directory);
        }
        let end = tail_start + at as u64;
        let locator = self.read_at("archive", end.saturating_sub(20), 20)?;
        if !locator.starts_with(b"PK\x06\x07") {
            return Ok(directory);
        }
        let end = self.read_at("archive", number(&locator, 8, 8), 56)?;
        match end.starts_with(b"PK\x06\x06") {
            true => Ok(Directory {
                count: number(&end, 32, 8),
                length: number(&end, 40, 8),
                start: number(&end, 48, 8),
            }),
            false => Err(bad(&self.path, "archive", "has a damaged 64-bit end record")),
        }
    }

    /// Takes the directory's next entry; returns its length there.
    fn add_entry(&mut self, bytes: &[u8]) -> Result<usize> {
        let path = &self.path;
        let cut = || bad(path, "archive", "has a directory that is cut off");
        let fixed = bytes.get(..46).filter(|f| f.starts_with(b"PK\x01\x02")).ok_or_else(cut)?;
        let [name, extra, comment] = [28, 30, 32].map(|p| number(fixed, p, 2) as usize);
        let text = bytes.get(46..46 + name).ok_or_else(cut)?;
        let extra_bytes = bytes.get(46 + name..46 + name + extra).ok_or_else(cut)?;
        let text = std::str::from_utf8(text)
            .map_err(|_| bad(path, "archive", "has an entry without a readable name"))?;
        let (flags, method) = (number(fixed, 8, 2), number(fixed, 10, 2));
        let (mut packed, mut length) = (number(fixed, 20, 4), number(fixed, 24, 4));
        let mut header = number(fixed, 42, 4);
        widen(extra_bytes, [&mut length, &mut packed, &mut header]);
        if flags & 1 != 0 {
            return Err(bad(path, text, "is encrypted"));
        }
        if method != 0 || packed != length {
            return Err(bad(path, text, "is compressed; torch.save stores its entries as they are"));
        }
        if self.entries.insert(text.to_owned(), Entry { header, length }).is_some() {
            return Err(bad(&self.path, text, "stands twice in the archive"));
        }
        Ok(46 + name + extra + comment)
    }
}

/// Replaces the values that 32 bits could not hold by those of the 64-bit extra field, which lists only them.
fn widen(mut extra: &[u8], values: [&mut u64; 3]) {
    while extra.len() >= 4 {
        let (id, length) = (number(extra, 0, 2), number(extra, 2, 2) as usize);
        let field = extra.get(4..4 + length).unwrap_or_default();
        if id == 1 {
            let full = values.into_iter().filter(|v| **v == 0xffff_ffff);
            for (value, wide) in full.zip(field.chunks_exact(8)) {
                *value = number(wide, 0, 8);
            }
            return;
        }
        extra = extra.get(4 + length..).unwrap_or_default();
    }
}
