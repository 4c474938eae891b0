//! Safetensors files, read with bounds: the header is checked before any data is.

use super::json::{object, texts};
use super::source::{Dtype, Info, Tensors, read_values};
use super::{bad, io, open};
use crate::error::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest header that is read. The deepest model has 4,096 layers of 12 tensors, about 8 MB of header.
const MAX_HEADER: u64 = 16 << 20;

/// One entry of the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// An open file whose header has been checked.
pub(super) struct SafeFile {
    path: PathBuf,
    file: File,
    data_start: u64,
    tensors: BTreeMap<String, (Info, u64)>,
    /// The header's `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

impl SafeFile {
    /// Opens a file and checks its header: no duplicate, known types, offsets that cover the file exactly.
    pub fn open(path: &Path) -> Result<Self> {
        let (mut file, length) = open(path)?;
        let header = header(path, &mut file, length)?;
        let mut rows = object(path, "header", &header)?;
        let metadata = match rows.remove("__metadata__") {
            Some(raw) => texts(path, "__metadata__", raw.get())?,
            None => BTreeMap::new(),
        };
        let mut tensors = BTreeMap::new();
        for (name, raw) in rows {
            let row = row(path, &name, raw.get())?;
            tensors.insert(name, row);
        }
        let data_start = 8 + header.len() as u64;
        check_cover(path, &tensors, length - data_start)?;
        Ok(Self { path: path.to_owned(), file, data_start, tensors, metadata })
    }
}

/// The header's text; its length is checked against the file's before anything is allocated.
fn header(path: &Path, file: &mut File, length: u64) -> Result<String> {
    let mut prefix = [0u8; 8];
    if length < 8 {
        return Err(bad(path, "header length", format!("is cut off: the file has {length} bytes")));
    }
    file.read_exact(&mut prefix).map_err(io(path, "read"))?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > length - 8 {
        let problem = format!(
            "is {header_len}, the file has {length} bytes; this is no safetensors file, or it is cut off"
        );
        return Err(bad(path, "header length", problem));
    }
    if header_len > MAX_HEADER {
        return Err(bad(path, "header length", format!("is {header_len}, at most {MAX_HEADER} are read")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact(&mut header).map_err(io(path, "read the header of"))?;
    String::from_utf8(header).map_err(|e| bad(path, "header", format!("is not UTF-8: {e}")))
}

/// Type, shape and first byte of a tensor.
fn row(path: &Path, name: &str, text: &str) -> Result<(Info, u64)> {
    let row: Row =
        serde_json::from_str(text).map_err(|e| bad(path, name, format!("has a bad header entry: {e}")))?;
    let Some(dtype) = Dtype::ALL.into_iter().find(|d| d.name() == row.dtype) else {
        return Err(bad(path, name, format!("has type {:.20}; F32, F16 or BF16 are read", row.dtype)));
    };
    let info = Info::new(path, name, dtype, &row.shape)?;
    let (start, end) = row.data_offsets;
    if end.checked_sub(start) != Some(info.bytes()) {
        let problem = format!("has offsets {start}..{end}, which do not fit shape {:?}", info.shape);
        return Err(bad(path, name, problem));
    }
    Ok((info, start))
}

/// Tensors must lie one behind the other and fill the file: no gaps, no overlaps, nothing behind.
fn check_cover(path: &Path, tensors: &BTreeMap<String, (Info, u64)>, data: u64) -> Result<()> {
    let mut spans: Vec<(u64, u64, &String)> =
        tensors.iter().map(|(name, (info, start))| (*start, info.bytes(), name)).collect();
    spans.sort_unstable();
    let mut at = 0;
    for (start, bytes, name) in spans {
        if start != at {
            let problem = format!("starts at byte {start}, the tensor before it ends at {at}");
            return Err(bad(path, name, problem));
        }
        at += bytes;
        if at > data {
            let problem = format!("ends at byte {at} of {data}: the file is cut off or doctored");
            return Err(bad(path, name, problem));
        }
    }
    match at == data {
        true => Ok(()),
        false => {
            let problem = format!("has {data} bytes, the header speaks of {at}: doctored");
            Err(bad(path, "data", problem))
        }
    }
}

impl Tensors for SafeFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn infos(&self) -> BTreeMap<String, Info> {
        self.tensors.iter().map(|(name, (info, _))| (name.clone(), info.clone())).collect()
    }

    fn read(&mut self, name: &str, out: &mut [f32]) -> Result<()> {
        let Some((info, start)) = self.tensors.get(name) else {
            return Err(bad(&self.path, name, "is absent"));
        };
        read_values(&self.path, &mut self.file, self.data_start + start, info.dtype, out)
    }
}
