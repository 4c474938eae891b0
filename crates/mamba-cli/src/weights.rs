//! Weights from whatever holds them.

use crate::args::{ExportDtype, FormatName};
use crate::error::{CliError, Result, io};
use crate::run_folder;
use mamba_model::MambaWeights;
use mamba_model::files::{self, Dtype, Kind};
use mamba_trainer::TrainingState;
use std::path::{Path, PathBuf};

/// What a path holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A run folder.
    Run(PathBuf),
    /// A training-state file.
    State(PathBuf),
    /// A weights file of ours.
    Native(PathBuf),
    /// A Hugging Face or state-spaces folder or file.
    Pretrained(PathBuf),
}

impl Source {
    /// What it is, for people.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Run(_) => "run folder",
            Self::State(_) => "training state",
            Self::Native(_) => "weights file",
            Self::Pretrained(_) => "pretrained checkpoint",
        }
    }
}

/// Looks at a path.
pub fn detect(path: &Path) -> Result<Source> {
    if !path.exists() {
        return Err(io(path, "open")(std::io::ErrorKind::NotFound.into()));
    }
    match path {
        p if run_folder::is_run(p) => Ok(Source::Run(p.to_owned())),
        p if p.extension().is_some_and(|e| e == "state") => Ok(Source::State(p.to_owned())),
        p => match files::detect(p)? {
            Kind::Native => Ok(Source::Native(p.to_owned())),
            _ => Ok(Source::Pretrained(p.to_owned())),
        },
    }
}

/// Loads a model's weights.
pub fn load(path: &Path) -> Result<MambaWeights> {
    match detect(path)? {
        Source::Run(root) => load_run(&root),
        Source::State(file) => Ok(TrainingState::read(&file)?.weights),
        Source::Native(path) | Source::Pretrained(path) => Ok(files::load_pretrained(&path)?),
    }
}

/// Newest weights of a run. A process that was killed at its first save may have left them in the state only.
fn load_run(root: &Path) -> Result<MambaWeights> {
    let (weights, state) = (run_folder::weights(root), run_folder::last_state(root));
    match (weights.exists(), state.exists()) {
        (true, _) => Ok(files::load_weights(&weights)?),
        (false, true) => Ok(TrainingState::read(&state)?.weights),
        (false, false) => Err(run_folder::no_checkpoint(root)),
    }
}

/// Writes weights in the native format.
pub fn save(path: &Path, weights: &MambaWeights) -> Result<()> {
    Ok(files::save_weights(path, weights)?)
}

/// Writes weights in any format.
pub fn export(weights: &MambaWeights, format: FormatName, dtype: ExportDtype, out: &Path) -> Result<()> {
    let dtype = match dtype {
        ExportDtype::F32 => Dtype::F32,
        ExportDtype::Bf16 => Dtype::Bf16,
        ExportDtype::F16 => Dtype::F16,
    };
    match format {
        FormatName::Native => save(out, weights),
        FormatName::Hf => Ok(files::export_hf(weights, out, dtype)?),
        FormatName::StateSpaces => Ok(files::export_state_spaces(weights, out, dtype)?),
    }
}

/// Loads the weights of a language model.
pub fn load_lm(path: &Path, command: &'static str) -> Result<MambaWeights> {
    let weights = load(path)?;
    match weights.config().lm {
        Some(_) => Ok(weights),
        None => Err(CliError::NoHead { path: path.to_owned(), command }),
    }
}
