use super::mapping::Entry;
use super::safe::{SafeFile, read_text};
use super::source::{Dtype, Source};
use super::{atomic_write, bad};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::params::MambaWeights;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// The one key of the metadata: several would be written in no fixed order.
const KEY: &str = "mamba-train";
const VERSION: u32 = 1;

/// What the metadata holds, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    version: u32,
    config: ModelConfig,
}

/// Saves weights as f32 safetensors under their own names, with the whole config in the metadata.
///
/// # Errors
/// [`ModelError::NonFinite`](crate::ModelError::NonFinite), [`ModelError::Io`](crate::ModelError::Io).
pub fn save_weights(path: &Path, weights: &MambaWeights) -> Result<()> {
    weights.check_finite()?;
    let meta = Meta { version: VERSION, config: weights.config().clone() };
    let text = serde_json::to_string(&meta).map_err(|e| bad(path, "config", e.to_string()))?;
    let metadata = HashMap::from([(KEY.to_owned(), text)]);
    let tensors = weights
        .table()
        .iter()
        .map(|p| (p.name.clone(), p.shape.clone(), Dtype::F32.encode(p.span.of(weights.arena()))));
    write(path, tensors.collect(), Dtype::F32, metadata)
}

/// Name, shape and little-endian bytes of a tensor.
pub(super) type Encoded = (String, Vec<usize>, Vec<u8>);

/// Writes tensors as a safetensors file, whole or not at all.
pub(super) fn write(
    path: &Path,
    tensors: Vec<Encoded>,
    dtype: Dtype,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let dtype = match dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::Bf16 => safetensors::Dtype::BF16,
    };
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(dtype, shape.clone(), bytes)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
    let bytes = bytes.map_err(|e| bad(path, "tensors", e.to_string()))?;
    atomic_write(path, |file| file.write_all(&bytes))
}

/// Loads what [`save_weights`] wrote.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn load_weights(path: &Path) -> Result<MambaWeights> {
    let file = SafeFile::open(path)?;
    let config = config_of(path, &file)?;
    let source = Source::new(path, vec![Box::new(file)])?;
    source.load(&config, Some(Dtype::F32), &|table| {
        Ok(table.iter().map(|p| Entry::same(&p.name, &p.shape)).collect())
    })
}

fn config_of(path: &Path, file: &SafeFile) -> Result<ModelConfig> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let text = file.metadata.get(KEY).ok_or_else(|| {
        bad(path, KEY, "is absent from the metadata: not a file of `save_weights`; `load_pretrained` reads folders of others")
    })?;
    let cannot = |e: serde_json::Error| bad(path, "config", format!("cannot be read: {e}"));
    let Version { version } = serde_json::from_str(text).map_err(cannot)?;
    if version != VERSION {
        return Err(bad(path, "version", format!("is {version}, this build reads version {VERSION}")));
    }
    let Meta { config, .. } = serde_json::from_str(text).map_err(cannot)?;
    config.validate()?;
    Ok(config)
}

fn parse_config(path: &Path, text: &str) -> Result<ModelConfig> {
    let config: ModelConfig =
        serde_json::from_str(text).map_err(|e| bad(path, "config", format!("cannot be read: {e}")))?;
    config.validate()?;
    Ok(config)
}

/// Reads a model config from a JSON file.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File), [`ModelError::Config`](crate::ModelError::Config).
pub fn read_config(path: &Path) -> Result<ModelConfig> {
    parse_config(path, &read_text(path)?)
}
