//! Checkpoints: own safetensors layout, Hugging Face and state-spaces folders.
//!
//! Every reader checks names, types and shapes against the config before it allocates anything of the model's size,
//! and every error names the file and the field. What a header, a config, an archive's directory or a pickle may
//! cost is bounded, whatever they say. Writers replace a file whole or not at all, and write the same bytes for the
//! same weights.
//!
//! Code map: [`atomic_write`]; `native`, `hf`, `state_spaces` know the configs; `mapping` the names and layouts;
//! `source` finds the files and reads tensors through `safe` (safetensors) and `torch` (over `zip` and `pickle`);
//! `write` is the one writer; `json` reads configs field by field.

mod atomic;
mod detect;
mod hf;
mod json;
mod mapping;
mod native;
mod pickle;
mod safe;
mod source;
mod state_spaces;
mod torch;
mod write;
mod zip;

pub use atomic::atomic_write;
pub use detect::{Kind, detect, load_pretrained};
pub use hf::{export_hf, load_hf};
pub use native::{load_weights, read_config, save_weights, write_config};
pub use source::Dtype;
pub use state_spaces::{export_state_spaces, load_state_spaces};

use crate::error::{ModelError, Result};
use std::fs::File;
use std::path::Path;

/// An error about a field of a file.
pub(crate) fn bad(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> ModelError {
    ModelError::File { path: path.to_owned(), field: field.into(), problem: problem.into() }
}

/// An error of the operating system.
pub(crate) fn io<'a>(path: &'a Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ModelError + 'a {
    move |source| ModelError::Io { path: path.to_owned(), action, source }
}

/// An error about a model's sizes as an error of the file they stand in. `names`: our field's name and the file's.
fn in_file<T>(path: &Path, names: &[(&str, &str)], result: Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        ModelError::Config { field, value, expected } => {
            let theirs = names.iter().find(|(own, _)| *own == field).map_or(field, |(_, theirs)| theirs);
            bad(path, theirs, format!("is {value}; it must be {expected}"))
        }
        ModelError::TooLarge { tensor, limit } => {
            bad(path, tensor, format!("pushes the model past {limit} elements"))
        }
        other => other,
    })
}

/// Opens a regular file and tells its length. A pipe or a device could block the reader or never end.
fn open(path: &Path) -> Result<(File, u64)> {
    if !std::fs::metadata(path).map_err(io(path, "open"))?.is_file() {
        return Err(bad(path, "file", "is no regular file"));
    }
    let file = File::open(path).map_err(io(path, "open"))?;
    let length = file.metadata().map_err(io(path, "look at"))?.len();
    Ok((file, length))
}
