//! Safetensors files, read with bounds: the header is checked before any data is.

use super::source::{Dtype, Info, Tensors};
use super::{bad, io};
use crate::error::Result;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest header that is read.
const MAX_HEADER: u64 = 64 << 20;

/// A JSON object whose keys may repeat: the caller decides.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Pairs;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

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
        let mut file = File::open(path).map_err(io(path, "open"))?;
        let length = file.metadata().map_err(io(path, "look at"))?.len();
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix)
            .map_err(|_| bad(path, "header length", "is cut off: the file has under 8 bytes"))?;
        let header_len = u64::from_le_bytes(prefix);
        if header_len > MAX_HEADER || header_len > length.saturating_sub(8) {
            let problem = format!(
                "is {header_len}, the file has {length} bytes; this is no safetensors file, or it is cut off"
            );
            return Err(bad(path, "header length", problem));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(io(path, "read the header of"))?;
        let Pairs(pairs) = serde_json::from_slice(&header)
            .map_err(|e| bad(path, "header", format!("is no JSON object: {e}")))?;
        let mut this = Self {
            path: path.to_owned(),
            file,
            data_start: 8 + header_len,
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        let mut seen_metadata = false;
        for (name, value) in pairs {
            if name == "__metadata__" {
                if std::mem::replace(&mut seen_metadata, true) {
                    return Err(bad(path, name, "stands twice in the header"));
                }
                this.metadata = serde_json::from_value(value)
                    .map_err(|e| bad(path, name, format!("must map texts to texts: {e}")))?;
                continue;
            }
            let row = this.row(&name, value)?;
            if this.tensors.insert(name.clone(), row).is_some() {
                return Err(bad(path, name, "stands twice in the header"));
            }
        }
        this.check_cover(length - this.data_start)?;
        Ok(this)
    }

    fn row(&self, name: &str, value: Value) -> Result<(Info, u64)> {
        let row: Row = serde_json::from_value(value)
            .map_err(|e| bad(&self.path, name, format!("has a bad header entry: {e}")))?;
        let dtype = match row.dtype.as_str() {
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::Bf16,
            other => {
                return Err(bad(&self.path, name, format!("has type {other}; F32, F16 or BF16 are read")));
            }
        };
        let bytes = row.shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d as u64));
        let (start, end) = row.data_offsets;
        if bytes.is_none() || end.checked_sub(start) != bytes {
            let problem = format!("has offsets {start}..{end}, which do not fit shape {:?}", row.shape);
            return Err(bad(&self.path, name, problem));
        }
        Ok((Info { dtype, shape: row.shape }, start))
    }

    /// Tensors must lie one behind the other and fill the file.
    fn check_cover(&self, data: u64) -> Result<()> {
        let bytes = |info: &Info| info.shape.iter().product::<usize>() as u64 * info.dtype.size() as u64;
        let mut spans: Vec<(u64, u64, &String)> =
            self.tensors.iter().map(|(name, (info, start))| (*start, start + bytes(info), name)).collect();
        spans.sort_unstable();
        let mut at = 0;
        for (start, end, name) in spans {
            if start != at {
                return Err(bad(
                    &self.path,
                    name,
                    format!("starts at byte {start}, the tensor before it ends at {at}"),
                ));
            }
            at = end;
        }
        match at == data {
            true => Ok(()),
            false => Err(bad(
                &self.path,
                "data",
                format!("has {data} bytes, the header speaks of {at}: cut off or doctored"),
            )),
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

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let Some((info, start)) = self.tensors.get(name) else {
            return Err(bad(&self.path, name, "is absent"));
        };
        let mut bytes = vec![0; info.shape.iter().product::<usize>() * info.dtype.size()];
        self.file
            .seek(SeekFrom::Start(self.data_start + start))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(io(&self.path, "read"))?;
        Ok(info.dtype.decode(&bytes))
    }
}

/// Files of a sharded checkpoint; none may lie outside the index's folder.
pub(super) fn shards(index: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_text(index)?;
    let parsed: Index =
        serde_json::from_str(&text).map_err(|e| bad(index, "weight_map", format!("cannot be read: {e}")))?;
    let mut files: Vec<&String> = parsed.weight_map.values().collect();
    files.sort_unstable();
    files.dedup();
    files
        .into_iter()
        .map(|name| {
            let plain = Path::new(name).file_name().is_some_and(|f| f == name.as_str());
            match plain {
                true => Ok(index.with_file_name(name)),
                false => Err(bad(
                    index,
                    "weight_map",
                    format!("names `{name}`; shards must lie in the same folder"),
                )),
            }
        })
        .collect()
}

/// A small text file.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let length = std::fs::metadata(path).map_err(io(path, "look at"))?.len();
    if length > MAX_HEADER {
        return Err(bad(path, "length", format!("is {length} bytes, at most {MAX_HEADER} are read")));
    }
    std::fs::read_to_string(path).map_err(io(path, "read"))
}
