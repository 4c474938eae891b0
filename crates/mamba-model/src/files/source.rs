//! Named tensors of a checkpoint, wherever they lie, decoded to f32.

use super::bad;
use super::mapping::Entry;
use super::safe::SafeFile;
use super::torch::TorchFile;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::params::{MambaWeights, ParamTable};
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// Bytes of an element.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Elements of little-endian bytes, widened.
    pub(super) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Self::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Self::Bf16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        }
    }

    /// Little-endian bytes, rounded to nearest even.
    pub(super) fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        }
    }
}

/// Type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Info {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

/// Something that holds named tensors.
pub(super) trait Tensors {
    fn path(&self) -> &Path;
    fn infos(&self) -> BTreeMap<String, Info>;
    fn read(&mut self, name: &str) -> Result<Vec<f32>>;
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

    /// The tensors of `folder`: model.safetensors, its sharded index, or pytorch_model.bin; or of a file.
    pub fn open(path: &Path) -> Result<Self> {
        let single = |file: &Path| -> Result<Box<dyn Tensors>> {
            match file.extension().is_some_and(|e| e == "bin") {
                true => Ok(Box::new(TorchFile::open(file)?)),
                false => Ok(Box::new(SafeFile::open(file)?)),
            }
        };
        if path.is_file() {
            return Self::new(path, vec![single(path)?]);
        }
        let index = path.join("model.safetensors.index.json");
        for name in ["model.safetensors", "pytorch_model.bin"] {
            let file = path.join(name);
            if file.is_file() {
                return Self::new(path, vec![single(&file)?]);
            }
        }
        if index.is_file() {
            let files = super::safe::shards(&index)?;
            let parts = files.iter().map(|f| single(f)).collect::<Result<Vec<_>>>()?;
            return Self::new(path, parts);
        }
        Err(bad(path, "model.safetensors", "is absent, and so are its index and pytorch_model.bin"))
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.owner.contains_key(name)
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        match self.owner.get(name) {
            Some(&(part, _)) => self.parts[part].read(name),
            None => Err(bad(&self.path, name, "is absent")),
        }
    }

    /// Checks every tensor's name and shape, then reads all into weights. `head` may stand beside a tied embedding and
    /// must then be equal to it.
    /// `only`: the one element type that is taken.
    pub fn load(
        mut self,
        config: &ModelConfig,
        only: Option<Dtype>,
        entries: &dyn Fn(&ParamTable) -> Result<Vec<Entry>>,
    ) -> Result<MambaWeights> {
        let entries = entries(&ParamTable::new(config)?)?;
        let tied_head = config.lm.as_ref().is_some_and(|lm| lm.tied).then_some("lm_head.weight");
        for e in &entries {
            let Some((_, info)) = self.owner.get(&e.name) else {
                return Err(bad(&self.path, &e.name, "is absent"));
            };
            if only.is_some_and(|dtype| dtype != info.dtype) {
                return Err(bad(
                    &self.path,
                    &e.name,
                    format!("is {:?}, {:?} is wanted", info.dtype, only.unwrap_or(info.dtype)),
                ));
            }
            if info.shape != e.shape {
                let problem = format!("has shape {:?}, the config asks for {:?}", info.shape, e.shape);
                return Err(bad(&self.path, &e.name, problem));
            }
        }
        for name in self.owner.keys() {
            let known = entries.iter().any(|e| e.name == *name) || tied_head == Some(name);
            if !known {
                return Err(bad(&self.path, name, "is no tensor of this model"));
            }
        }
        let mut weights = MambaWeights::zeros(config)?;
        for e in &entries {
            let values = self.read(&e.name)?;
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                return Err(bad(
                    &self.path,
                    &e.name,
                    format!("holds {} at index {i}; weights must be finite", values[i]),
                ));
            }
            weights.set(&e.own, &e.to_own(&values))?;
        }
        if let Some(name) = tied_head.filter(|n| self.has(n))
            && self.read(name)? != weights.get("embedding")?
        {
            return Err(bad(&self.path, name, "differs from the embedding, though the config ties them"));
        }
        Ok(weights)
    }
}
