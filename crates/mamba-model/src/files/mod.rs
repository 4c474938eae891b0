//! Checkpoints: own safetensors layout, Hugging Face and state-spaces folders.
//!
//! Every reader checks names, types and shapes against the config before it allocates anything of the model's size, and
//! every error names the file and the field. Writers replace a file whole or not at all.

mod atomic;
mod detect;
mod hf;
mod mapping;
mod native;
mod pickle;
mod safe;
mod source;
mod state_spaces;
mod torch;

pub use atomic::atomic_write;
pub use detect::{Kind, detect, load_pretrained};
pub use hf::{export_hf, load_hf};
pub use native::{load_weights, read_config, save_weights};
pub use source::Dtype;
pub use state_spaces::{export_state_spaces, load_state_spaces};

use crate::error::ModelError;
use std::path::Path;

/// An error about a field of a file.
pub(crate) fn bad(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> ModelError {
    ModelError::File { path: path.to_owned(), field: field.into(), problem: problem.into() }
}

/// An error of the operating system.
pub(crate) fn io<'a>(path: &'a Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ModelError + 'a {
    move |source| ModelError::Io { path: path.to_owned(), action, source }
}
