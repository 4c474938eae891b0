//! `pytorch_model.bin`: an archive with a pickle of names and shapes, and one entry a storage.

use super::bad;
use super::pickle::{self, TensorRef, Value};
use super::source::{Dtype, Info, Tensors, read_values};
use super::zip::Archive;
use crate::error::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An open archive whose directory and pickle have been checked.
pub(super) struct TorchFile {
    path: PathBuf,
    archive: Archive,
    /// Type and shape, and the first byte in the file.
    tensors: BTreeMap<String, (Info, u64)>,
}

impl TorchFile {
    /// Opens an archive.
    pub fn open(path: &Path) -> Result<Self> {
        let mut archive = Archive::open(path)?;
        let root = archive.names().find_map(|name| name.strip_suffix("/data.pkl")).map(str::to_owned);
        let Some(root) = root else {
            return Err(bad(path, "data.pkl", "is absent from the archive; this is no file of torch.save"));
        };
        if archive.read(&format!("{root}/byteorder"))?.is_some_and(|order| order != b"little") {
            return Err(bad(
                path,
                "byteorder",
                "is not `little`; convert the file on the machine that wrote it",
            ));
        }
        let pickle = archive.read(&format!("{root}/data.pkl"))?.unwrap_or_default();
        let pairs = pickle::read(&pickle).map_err(|problem| bad(path, "data.pkl", problem))?;
        let mut tensors = BTreeMap::new();
        let mut total = 0u64;
        for (key, value) in pairs {
            let Value::Text(key) = key else {
                return Err(bad(path, "data.pkl", "has a key that is no text"));
            };
            let Value::Tensor(tensor) = value else { return Err(bad(path, &*key, "is no tensor")) };
            let place = place(path, &mut archive, &root, &key, &tensor)?;
            // A tied head shares the embedding's storage. More sharing would make a model of a few bytes.
            total = total.saturating_add(place.0.bytes());
            if total > archive.size.saturating_mul(2) {
                let problem =
                    format!("shares its storage: {total} bytes of tensors in a file of {}", archive.size);
                return Err(bad(path, &*key, problem));
            }
            if tensors.insert(key.to_string(), place).is_some() {
                return Err(bad(path, &*key, "stands twice in the file"));
            }
        }
        Ok(Self { path: path.to_owned(), archive, tensors })
    }
}

/// Type and shape of a tensor, and where its bytes lie.
fn place(
    path: &Path,
    archive: &mut Archive,
    root: &str,
    name: &str,
    tensor: &TensorRef,
) -> Result<(Info, u64)> {
    let dtype = match &*tensor.kind {
        "torch.FloatStorage" => Dtype::F32,
        "torch.HalfStorage" => Dtype::F16,
        "torch.BFloat16Storage" => Dtype::Bf16,
        other => {
            let problem = format!("is stored as {other}; float, half and bfloat16 are read");
            return Err(bad(path, name, problem));
        }
    };
    let info = Info::new(path, name, dtype, &tensor.shape)?;
    if !is_contiguous(&tensor.shape, &tensor.stride) {
        let (shape, stride) = (&tensor.shape, &tensor.stride);
        let problem = format!("has strides {stride:?} for shape {shape:?}; only contiguous tensors are read");
        return Err(bad(path, name, problem));
    }
    let storage = format!("{root}/data/{}", tensor.key);
    let Some((start, length)) = archive.find(name, &storage)? else {
        return Err(bad(
            path,
            name,
            format!("lies in storage {}, which the archive does not have", tensor.key),
        ));
    };
    let offset = (tensor.offset as u64).checked_mul(dtype.size() as u64);
    match offset.filter(|o| o.checked_add(info.bytes()).is_some_and(|end| end <= length)) {
        Some(offset) => Ok((info, start + offset)),
        None => Err(bad(path, name, format!("reaches beyond its storage of {length} bytes"))),
    }
}

/// Whether the elements lie row-major without gaps. The stride of a dimension of one element says nothing.
fn is_contiguous(shape: &[usize], stride: &[usize]) -> bool {
    let mut dense = Some(1usize);
    shape.len() == stride.len()
        && shape.iter().zip(stride).rev().all(|(&size, &step)| {
            let fits = size == 1 || dense == Some(step);
            dense = dense.and_then(|d| d.checked_mul(size));
            fits
        })
}

impl Tensors for TorchFile {
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
        read_values(&self.path, &mut self.archive.file, *start, info.dtype, out)
    }
}
