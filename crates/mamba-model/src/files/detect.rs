use super::hf::load_hf;
use super::native::load_weights;
use super::safe::read_text;
use super::state_spaces::load_state_spaces;
use super::{bad, io};
use crate::error::Result;
use crate::params::MambaWeights;
use std::path::Path;

/// What a path holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file of [`save_weights`](super::save_weights).
    Native,
    /// A Hugging Face folder.
    HuggingFace,
    /// A folder in the original naming.
    StateSpaces,
}

/// Looks at a file or folder.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) where it is none of these, [`ModelError::Io`](crate::ModelError::Io).
pub fn detect(path: &Path) -> Result<Kind> {
    let found = std::fs::metadata(path).map_err(io(path, "open"))?;
    if found.is_file() {
        return Ok(Kind::Native);
    }
    let config = path.join("config.json");
    if !config.is_file() {
        return Err(bad(path, "config.json", "is absent; a folder of transformers or state-spaces has one"));
    }
    let value: serde_json::Value = serde_json::from_str(&read_text(&config)?)
        .map_err(|e| bad(&config, "config", format!("is no JSON: {e}")))?;
    match (value.get("model_type"), value.get("d_model")) {
        (Some(_), _) => Ok(Kind::HuggingFace),
        (None, Some(_)) => Ok(Kind::StateSpaces),
        (None, None) => Err(bad(
            &config,
            "model_type",
            "is absent, and so is `d_model`: the checkpoint's style is not known",
        )),
    }
}

/// Loads weights in any format that [`detect`] knows.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Config`](crate::ModelError::Config),
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn load_pretrained(path: &Path) -> Result<MambaWeights> {
    match detect(path)? {
        Kind::Native => load_weights(path),
        Kind::HuggingFace => load_hf(path),
        Kind::StateSpaces => load_state_spaces(path),
    }
}
