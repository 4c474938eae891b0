//! Named tensors of a checkpoint, wherever they lie, decoded to f32.

use super::json::{object, read_text, texts};
use super::mapping::Entry;
use super::safe::SafeFile;
use super::torch::TorchFile;
use super::{bad, in_file, io};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::params::{MambaWeights, ParamTable};
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Elements that are decoded at a time.
const PIECE: usize = 1 << 18;
/// Most dimensions of a tensor; models have at most 3.
pub(super) const MAX_DIMS: usize = 8;
/// Longest index of a sharded checkpoint.
const MAX_INDEX: u64 = 16 << 20;

/// Element types of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Every type that is read and written.
    pub(super) const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes of an element.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The type's name in a safetensors header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// The value that is read back after writing this one.
    pub(super) fn round(self, v: f32) -> f32 {
        match self {
            Self::F32 => v,
            Self::F16 => f16::from_f32(v).to_f32(),
            Self::Bf16 => bf16::from_f32(v).to_f32(),
        }
    }

    /// Widens as many little-endian elements as `out` holds.
    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *o = f32::from_le_bytes(*b);
                }
            }
            Self::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *o = f16::from_le_bytes(*b).to_f32();
                }
            }
            Self::Bf16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *o = bf16::from_le_bytes(*b).to_f32();
                }
            }
        }
    }

    /// Appends little-endian elements, rounded to nearest even.
    pub(super) fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            Self::F16 => out.extend(values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
            Self::Bf16 => out.extend(values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes())),
        }
    }
}

/// Type and shape of a tensor whose size in bytes has been checked not to overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Info {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    bytes: u64,
}

impl Info {
    pub fn new(path: &Path, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Self> {
        if shape.len() > MAX_DIMS {
            return Err(bad(
                path,
                name,
                format!("has {} dimensions, at most {MAX_DIMS} are read", shape.len()),
            ));
        }
        let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
        match bytes {
            Some(bytes) => Ok(Self { dtype, shape: shape.to_vec(), bytes: bytes as u64 }),
            None => {
                Err(bad(path, name, format!("has shape {shape:?}, beyond every file; its offsets overflow")))
            }
        }
    }

    /// Bytes of the tensor's data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Something that holds named tensors.
pub(super) trait Tensors {
    fn path(&self) -> &Path;
    fn infos(&self) -> BTreeMap<String, Info>;
    /// Reads a tensor of as many elements as `out` has.
    fn read(&mut self, name: &str, out: &mut [f32]) -> Result<()>;
}

/// Reads elements from a byte of a file on, piece by piece.
pub(super) fn read_values(
    path: &Path,
    file: &mut File,
    start: u64,
    dtype: Dtype,
    out: &mut [f32],
) -> Result<()> {
    file.seek(SeekFrom::Start(start)).map_err(io(path, "seek in"))?;
    let mut bytes = vec![0; PIECE.min(out.len()) * dtype.size()];
    for piece in out.chunks_mut(PIECE) {
        let bytes = &mut bytes[..piece.len() * dtype.size()];
        file.read_exact(bytes).map_err(io(path, "read"))?;
        dtype.decode(bytes, piece);
    }
    Ok(())
}

/// The files of one checkpoint.
pub(super) struct Source {
    parts: Vec<Box<dyn Tensors>>,
    owner: BTreeMap<String, (usize, Info)>,
    path: PathBuf,
}

impl Source {
    /// Joins the parts; a name in two of them is refused.
    pub fn new(path: &Path, parts: Vec<Box<dyn Tensors>>) -> Result<Self> {
        let mut owner = BTreeMap::new();
        for (i, part) in parts.iter().enumerate() {
            for (name, info) in part.infos() {
                if owner.insert(name.clone(), (i, info)).is_some() {
                    return Err(bad(part.path(), name, "stands in two files of the checkpoint"));
                }
            }
        }
        Ok(Self { parts, owner, path: path.to_owned() })
    }

    /// The tensors of a weights file, of an index with its shards, or of the first of them that a folder has.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return match WEIGHT_FILES.iter().map(|name| path.join(name)).find(|file| file.exists()) {
                Some(file) => Self::open(&file),
                None => {
                    Err(bad(path, WEIGHT_FILES[0], format!("is absent, and so are {:?}", &WEIGHT_FILES[1..])))
                }
            };
        }
        match path.extension().is_some_and(|e| e == "json") {
            true => Self::open_index(path),
            false => Self::new(path, vec![open_part(path)?]),
        }
    }

    fn open_index(index: &Path) -> Result<Self> {
        let text = read_text(index, MAX_INDEX)?;
        let fields = object(index, "index", &text)?;
        let map = fields.get("weight_map").ok_or_else(|| bad(index, "weight_map", "is absent"))?;
        let map = texts(index, "weight_map", map.get())?;
        let names: BTreeSet<&String> = map.values().collect();
        let parts = names.into_iter().map(|name| open_part(&shard(index, name)?));
        let this = Self::new(index, parts.collect::<Result<_>>()?)?;
        for (tensor, file) in &map {
            let found = this.owner.get(tensor).and_then(|&(i, _)| this.parts.get(i));
            if !found.is_some_and(|part| part.path().ends_with(file)) {
                return Err(bad(
                    index,
                    tensor,
                    format!("is said to stand in `{file}`, which does not have it"),
                ));
            }
        }
        match this.owner.keys().find(|name| !map.contains_key(*name)) {
            Some(name) => Err(bad(index, name, "stands in a shard, but not in the index")),
            None => Ok(this),
        }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.owner.contains_key(name)
    }

    fn info(&self, name: &str) -> Result<&Info> {
        self.owner.get(name).map(|(_, info)| info).ok_or_else(|| bad(&self.path, name, "is absent"))
    }

    /// Reads a tensor into as many elements as it has, and refuses a NaN or an infinity.
    fn read(&mut self, name: &str, out: &mut [f32]) -> Result<()> {
        match self.owner.get(name).and_then(|&(i, _)| self.parts.get_mut(i)) {
            Some(part) => part.read(name, out)?,
            None => return Err(bad(&self.path, name, "is absent")),
        }
        match out.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            Some((i, v)) => {
                Err(bad(&self.path, name, format!("holds {v} at index {i}; weights must be finite")))
            }
            None => Ok(()),
        }
    }

    /// Names, shapes and types against what the model asks for; nothing may be missing and nothing left over.
    fn check(&self, entries: &[Entry], copy: Option<&Entry>, only: Option<Dtype>) -> Result<()> {
        for e in entries.iter().chain(copy.filter(|c| self.has(&c.name))) {
            let info = self.info(&e.name)?;
            if let Some(dtype) = only.filter(|&d| d != info.dtype) {
                return Err(bad(&self.path, &e.name, format!("is {:?}, {dtype:?} is wanted", info.dtype)));
            }
            if info.shape != e.shape {
                let problem = format!("has shape {:?}, the config asks for {:?}", info.shape, e.shape);
                return Err(bad(&self.path, &e.name, problem));
            }
        }
        let known: BTreeSet<&str> = entries.iter().chain(copy).map(|e| e.name.as_str()).collect();
        match self.owner.keys().find(|name| !known.contains(name.as_str())) {
            Some(name) => Err(bad(&self.path, name, "is no tensor of this model")),
            None => Ok(()),
        }
    }

    /// Checks every tensor's name, shape and type, then reads all into weights. `copy` may stand beside another
    /// tensor (a tied head beside the embedding) and must then be equal to it. `only`: the one element type that is
    /// taken.
    pub fn load(
        mut self,
        config: &ModelConfig,
        entries: &[Entry],
        copy: Option<&Entry>,
        only: Option<Dtype>,
    ) -> Result<MambaWeights> {
        self.check(entries, copy, only)?;
        let table = in_file(&self.path, &[], ParamTable::new(config))?;
        let mut arena = zeros(&self.path, table.arena_len())?;
        let mut scratch = Vec::new();
        for e in entries {
            let out = table.get(&e.own)?.span.of_mut(&mut arena);
            if e.is_transposed() {
                scratch.resize(out.len(), 0.0);
                self.read(&e.name, &mut scratch)?;
                e.to_own(&scratch, out);
            } else {
                self.read(&e.name, out)?;
            }
        }
        if let Some(copy) = copy.filter(|c| self.has(&c.name)) {
            let original = table.get(&copy.own)?.span.of(&arena);
            scratch.resize(original.len(), 0.0);
            self.read(&copy.name, &mut scratch)?;
            if scratch != original {
                let problem = format!("differs from the {}, though the config ties them", copy.own);
                return Err(bad(&self.path, &copy.name, problem));
            }
        }
        MambaWeights::from_arena(config, arena)
    }
}

/// What a folder's weights may be called, best first.
pub(super) const WEIGHT_FILES: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

fn open_part(path: &Path) -> Result<Box<dyn Tensors>> {
    match path.extension().is_some_and(|e| e == "bin") {
        true => Ok(Box::new(TorchFile::open(path)?)),
        false => Ok(Box::new(SafeFile::open(path)?)),
    }
}

/// A file named by an index; none may lie outside the index's folder.
fn shard(index: &Path, name: &str) -> Result<PathBuf> {
    let plain = Path::new(name).file_name().is_some_and(|f| f == name) && !name.contains('\\');
    match plain {
        true => Ok(index.with_file_name(name)),
        false => {
            let problem = format!("names `{name}`; shards must lie in the same folder");
            Err(bad(index, "weight_map", problem))
        }
    }
}

/// An arena of zeros. A sparse file can claim more than the memory holds: that is an error, no abort.
fn zeros(path: &Path, len: usize) -> Result<Vec<f32>> {
    let mut arena = Vec::new();
    arena
        .try_reserve_exact(len)
        .map_err(|e| bad(path, "tensors", format!("need {} bytes of memory: {e}", 4 * len as u64)))?;
    arena.resize(len, 0.0);
    Ok(arena)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert_eq!(zeros(Path::new("x"), 3).unwrap(), [0.0; 3]);
        let error = zeros(Path::new("x"), usize::MAX / 4).unwrap_err().to_string();
        assert!(error.contains("`tensors` need"), "{error}");
    }

    #[test]
    fn halves_round_to_nearest_even_and_keep_infinities() {
        assert_eq!(Dtype::Bf16.round(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(Dtype::Bf16.round(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(Dtype::F16.round(1.0 + 1.0 / 2048.0), 1.0);
        assert_eq!(Dtype::F16.round(65_520.0), f32::INFINITY);
        for dtype in Dtype::ALL {
            let values = [1.5, -0.0, f32::INFINITY, f32::NAN, -2.0];
            let (mut bytes, mut back) = (Vec::new(), [0.0; 5]);
            dtype.encode(&values, &mut bytes);
            assert_eq!(bytes.len(), 5 * dtype.size());
            dtype.decode(&bytes, &mut back);
            assert_eq!(back.map(f32::to_bits)[..3], values.map(f32::to_bits)[..3], "{dtype:?}");
            assert!(back[3].is_nan() && back[4] == -2.0, "{dtype:?}");
        }
    }
}
