use super::hf::load_hf;
use super::json::{MAX_CONFIG, object, read_text};
use super::native::{is_native, load_weights};
use super::source::WEIGHT_FILES;
use super::state_spaces::load_state_spaces;
use super::{bad, io};
use crate::error::Result;
use crate::params::MambaWeights;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";

/// What a path holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file of [`save_weights`](super::save_weights).
    Native,
    /// A Hugging Face folder, or a weights file in one.
    HuggingFace,
    /// A folder in the original naming, or a weights file in one.
    StateSpaces,
}

/// The config and the weights that a folder, or a weights file in one, stands for.
pub(super) fn checkpoint_of(path: &Path) -> (PathBuf, PathBuf) {
    match path.is_file() {
        true => (path.with_file_name(CONFIG), path.to_owned()),
        false => (path.join(CONFIG), path.to_owned()),
    }
}

/// Looks at a file or folder. A file counts as native unless it bears a name of the other formats, does not say that
/// it is native, and has a config beside it.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) where it is none of these,
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn detect(path: &Path) -> Result<Kind> {
    let is_dir = std::fs::metadata(path).map_err(io(path, "open"))?.is_dir();
    let (config, _) = checkpoint_of(path);
    if !is_dir {
        let foreign = path.file_name().is_some_and(|name| WEIGHT_FILES.iter().any(|w| name == *w));
        return match foreign && config.is_file() && !is_native(path) {
            true => style(&config),
            false => Ok(Kind::Native),
        };
    }
    if !config.exists() {
        return Err(bad(path, CONFIG, "is absent; a folder of transformers or state-spaces has one"));
    }
    style(&config)
}

fn style(config: &Path) -> Result<Kind> {
    let text = read_text(config, MAX_CONFIG)?;
    let keys = object(config, "config", &text)?;
    match (keys.contains_key("model_type"), keys.contains_key("d_model")) {
        (true, _) => Ok(Kind::HuggingFace),
        (false, true) => Ok(Kind::StateSpaces),
        (false, false) => {
            let problem = "is absent, and so is `d_model`: the checkpoint's style is not known";
            Err(bad(config, "model_type", problem))
        }
    }
}

/// Loads weights in any format that [`detect`] knows.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn load_pretrained(path: &Path) -> Result<MambaWeights> {
    match detect(path)? {
        Kind::Native => load_weights(path),
        Kind::HuggingFace => load_hf(path),
        Kind::StateSpaces => load_state_spaces(path),
    }
}
