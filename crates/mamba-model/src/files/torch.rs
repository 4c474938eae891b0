//! `pytorch_model.bin`: a zip archive of stored (uncompressed) entries with a pickle of the names.

use super::pickle::{self, Value};
use super::source::{Dtype, Info, Tensors};
use super::{bad, io};
use crate::error::{ModelError, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest directory and pickle that are read.
const MAX_INDEX: u64 = 64 << 20;

/// An entry of the archive.
#[derive(Debug, Clone, Copy)]
struct Entry {
    header: u64,
    length: u64,
}

#[derive(Debug, Clone)]
struct Place {
    info: Info,
    /// Byte of the file, and length.
    start: u64,
}

/// An open archive whose directory and pickle have been checked.
pub(super) struct TorchFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, Place>,
}

impl TorchFile {
    /// Opens an archive.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(io(path, "open"))?;
        let entries = directory(path, &mut file)?;
        let (name, entry) =
            entries.iter().find(|(name, _)| name.ends_with("/data.pkl")).ok_or_else(|| {
                bad(path, "data.pkl", "is absent from the archive; this is no file of torch.save")
            })?;
        let root = name.trim_end_matches("data.pkl").to_owned();
        if entry.length > MAX_INDEX {
            return Err(bad(
                path,
                "data.pkl",
                format!("has {} bytes, at most {MAX_INDEX} are read", entry.length),
            ));
        }
        let start = data_start(path, &mut file, "data.pkl", *entry)?;
        let bytes = read_at(path, &mut file, start, entry.length)?;
        let pairs = pickle::read(&bytes).map_err(|problem| bad(path, "data.pkl", problem))?;
        let mut tensors = BTreeMap::new();
        for (key, value) in pairs {
            let Value::Text(key) = key else {
                return Err(bad(path, "data.pkl", "has a key that is no text"));
            };
            let place = place(path, &mut file, &entries, &root, &key, &value)?;
            if tensors.insert(key.to_string(), place).is_some() {
                return Err(bad(path, &*key, "stands twice in the file"));
            }
        }
        Ok(Self { path: path.to_owned(), file, tensors })
    }
}

/// Where a tensor's bytes lie.
fn place(
    path: &Path,
    file: &mut File,
    entries: &BTreeMap<String, Entry>,
    root: &str,
    name: &str,
    value: &Value,
) -> Result<Place> {
    let Value::Tensor { kind, key, offset, shape, stride } = value else {
        return Err(bad(path, name, "is no tensor"));
    };
    let dtype = match &**kind {
        "torch.FloatStorage" => Dtype::F32,
        "torch.HalfStorage" => Dtype::F16,
        "torch.BFloat16Storage" => Dtype::Bf16,
        other => {
            return Err(bad(path, name, format!("is stored as {other}; float, half and bfloat16 are read")));
        }
    };
    let mut dense = 1usize;
    for (&size, &step) in shape.iter().zip(stride.iter()).rev() {
        if size != 1 && step != dense || shape.len() != stride.len() {
            return Err(bad(
                path,
                name,
                format!("has strides {stride:?} for shape {shape:?}; only contiguous tensors are read"),
            ));
        }
        dense = dense
            .checked_mul(size)
            .ok_or_else(|| bad(path, name, format!("has an impossible shape {shape:?}")))?;
    }
    let entry = *entries
        .get(&format!("{root}data/{key}"))
        .ok_or_else(|| bad(path, name, format!("lies in storage {key}, which the archive does not have")))?;
    let end = offset.checked_add(dense).and_then(|n| n.checked_mul(dtype.size()));
    if end.is_none_or(|e| e as u64 > entry.length) {
        return Err(bad(path, name, format!("reaches beyond its storage of {} bytes", entry.length)));
    }
    let start = data_start(path, file, name, entry)? + (offset * dtype.size()) as u64;
    Ok(Place { info: Info { dtype, shape: shape.to_vec() }, start })
}

fn read_at(path: &Path, file: &mut File, start: u64, length: u64) -> Result<Vec<u8>> {
    let size = file.metadata().map_err(io(path, "look at"))?.len();
    if start.checked_add(length).is_none_or(|end| end > size) {
        return Err(bad(
            path,
            "archive",
            format!("speaks of bytes {start} to {start} + {length}, the file has {size}"),
        ));
    }
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut bytes)).map_err(io(path, "read"))?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize, n: usize) -> u64 {
    bytes.get(at..at + n).unwrap_or_default().iter().rev().fold(0, |x, &b| x << 8 | u64::from(b))
}

/// Entries of the archive's central directory (PKWARE's application note, sections 4.3.12 and 4.3.16).
fn directory(path: &Path, file: &mut File) -> Result<BTreeMap<String, Entry>> {
    let size = file.metadata().map_err(io(path, "look at"))?.len();
    let tail_len = size.min(22 + (1 << 16));
    let tail = read_at(path, file, size - tail_len, tail_len)?;
    let end = tail.windows(4).rposition(|w| w == b"PK\x05\x06").filter(|&e| e + 22 <= tail.len());
    let end = end.ok_or_else(|| {
        bad(path, "archive", "has no end record; this is no file of torch.save, or it is cut off")
    })?;
    let (count, length, start) =
        (number(&tail, end + 10, 2), number(&tail, end + 12, 4), number(&tail, end + 16, 4));
    if count == 0xffff || start == 0xffff_ffff {
        return Err(bad(path, "archive", "is larger than 4 GiB; convert it to safetensors"));
    }
    if length > MAX_INDEX {
        return Err(bad(
            path,
            "archive",
            format!("has a directory of {length} bytes, at most {MAX_INDEX} are read"),
        ));
    }
    let bytes = read_at(path, file, start, length)?;
    let (mut entries, mut at) = (BTreeMap::new(), 0);
    for _ in 0..count {
        let fixed = bytes.get(at..at + 46).filter(|f| f.starts_with(b"PK\x01\x02"));
        let fixed = fixed.ok_or_else(|| bad(path, "archive", "has a directory that is cut off"))?;
        let [name, extra, comment] = [28, 30, 32].map(|p| number(fixed, p, 2) as usize);
        let (method, packed, length) = (number(fixed, 10, 2), number(fixed, 20, 4), number(fixed, 24, 4));
        let text = bytes.get(at + 46..at + 46 + name).and_then(|n| std::str::from_utf8(n).ok());
        let text = text.ok_or_else(|| bad(path, "archive", "has an entry without a readable name"))?;
        if method != 0 || packed != length {
            return Err(bad(path, text, "is compressed; torch.save stores its entries as they are"));
        }
        if entries.insert(text.to_owned(), Entry { header: number(fixed, 42, 4), length }).is_some() {
            return Err(bad(path, text, "stands twice in the archive"));
        }
        at += 46 + name + extra + comment;
    }
    Ok(entries)
}

/// First byte of an entry's data, behind its local header.
fn data_start(path: &Path, file: &mut File, name: &str, entry: Entry) -> Result<u64> {
    let header = read_at(path, file, entry.header, 30)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(bad(path, name, "has a damaged header in the archive"));
    }
    let start = entry.header + 30 + number(&header, 26, 2) + number(&header, 28, 2);
    let size = file.metadata().map_err(io(path, "look at"))?.len();
    match start + entry.length <= size {
        true => Ok(start),
        false => Err::<u64, ModelError>(bad(path, name, format!("reaches beyond the file of {size} bytes"))),
    }
}

impl Tensors for TorchFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn infos(&self) -> BTreeMap<String, Info> {
        self.tensors.iter().map(|(name, place)| (name.clone(), place.info.clone())).collect()
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let Some(Place { info, start }) = self.tensors.get(name).cloned() else {
            return Err(bad(&self.path, name, "is absent"));
        };
        let length = info.shape.iter().product::<usize>() * info.dtype.size();
        Ok(info.dtype.decode(&read_at(&self.path, &mut self.file, start, length as u64)?))
    }
}
