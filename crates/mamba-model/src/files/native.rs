use super::json::{MAX_CONFIG, read_text, write_json};
use super::mapping::Entry;
use super::safe::SafeFile;
use super::source::{Dtype, Source};
use super::write::write;
use super::{bad, in_file};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::params::{MambaWeights, ParamTable};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The one key of the metadata.
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
    let meta = Meta { version: VERSION, config: weights.config().clone() };
    let text = serde_json::to_string(&meta).map_err(|e| bad(path, "config", e.to_string()))?;
    let entries = weights.table().iter().map(Entry::same).collect();
    write(path, weights, entries, Dtype::F32, &[(KEY, &text)])
}

/// Loads what [`save_weights`] wrote.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn load_weights(path: &Path) -> Result<MambaWeights> {
    let file = SafeFile::open(path)?;
    let config = config_of(path, &file)?;
    let table = in_file(path, &[], ParamTable::new(&config))?;
    let entries: Vec<Entry> = table.iter().map(Entry::same).collect();
    Source::new(path, vec![Box::new(file)])?.load(&config, &entries, None, Some(Dtype::F32))
}

/// Whether a file's header says that [`save_weights`] wrote it.
pub(super) fn is_native(path: &Path) -> bool {
    SafeFile::open(path).is_ok_and(|file| file.metadata.contains_key(KEY))
}

fn config_of(path: &Path, file: &SafeFile) -> Result<ModelConfig> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let text = file.metadata.get(KEY).ok_or_else(|| {
        let problem =
            "is absent from the metadata: not a file of `save_weights`; `load_pretrained` reads others";
        bad(path, KEY, problem)
    })?;
    let cannot = |e: serde_json::Error| bad(path, "config", format!("cannot be read: {e}"));
    let Version { version } = serde_json::from_str(text).map_err(cannot)?;
    if version != VERSION {
        return Err(bad(path, "version", format!("is {version}, this build reads version {VERSION}")));
    }
    let Meta { config, .. } = serde_json::from_str(text).map_err(cannot)?;
    in_file(path, &[], config.validate())?;
    Ok(config)
}

fn parse_config(path: &Path, text: &str) -> Result<ModelConfig> {
    let config: ModelConfig =
        serde_json::from_str(text).map_err(|e| bad(path, "config", format!("cannot be read: {e}")))?;
    in_file(path, &[], config.validate())?;
    Ok(config)
}

/// Reads a model config that [`write_config`] wrote: every field must be there, unknown ones are refused.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn read_config(path: &Path) -> Result<ModelConfig> {
    parse_config(path, &read_text(path, MAX_CONFIG)?)
}

/// Writes a model config as JSON.
///
/// # Errors
/// [`ModelError::Config`](crate::ModelError::Config) for one that could not be read back,
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn write_config(path: &Path, config: &ModelConfig) -> Result<()> {
    config.validate()?;
    write_json(path, config)
}
