//! Everything that can go wrong, as one line for the user and an exit code for scripts.

use mamba_data::DataError;
use mamba_model::ModelError;
use mamba_optim::OptimError;
use mamba_trainer::TrainerError;
use std::path::{Path, PathBuf};

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// A flag with a value that nothing can be done with.
    #[error("`{flag}` is {value}; it must be {expected}")]
    Flag {
        /// The flag, dashes included.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Sizes that give no model.
    #[error("these sizes give no model")]
    Sizes(#[source] ModelError),
    /// Model, weights or a file of them.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Optimizer setting.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// Trainer.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A file of a run folder that cannot be understood.
    #[error("{}: `{field}` {problem}", path.display())]
    RunFile {
        /// The file.
        path: PathBuf,
        /// The field inside it.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A path that exists where a new one is needed.
    #[error("{} exists already; give a new path", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A run where a new one is to begin.
    #[error("{0} is a run already; give a new path, or go on with it: `mamba train --resume {0}`", path.display())]
    RunExists {
        /// The run's folder.
        path: PathBuf,
    },
    /// No run where one is needed.
    #[error("{}: no run folder; one has a config.json and checkpoints", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
    },
    /// A run that no process trains and that has saved nothing.
    #[error("{}: the run ended before its first checkpoint; start anew", path.display())]
    NoCheckpoint {
        /// The run's folder.
        path: PathBuf,
    },
    /// A run under way that has saved nothing yet.
    #[error("{}: the run has no checkpoint yet", path.display())]
    NotYet {
        /// The run's folder.
        path: PathBuf,
    },
    /// A state that cannot be gone on from.
    #[error("{}: the run cannot go on", run.display())]
    Damaged {
        /// The run's folder.
        run: PathBuf,
        /// What is wrong with its state.
        #[source]
        source: Box<CliError>,
    },
    /// A training whose weights or states are not finite any more.
    #[error(
        "the run diverged at step {step}: {problem}; nothing was saved from there; lower `--lr`, or set a lower `--clip`"
    )]
    Diverged {
        /// The first of the steps that could not be taken.
        step: u64,
        /// Where it shows.
        problem: String,
    },
    /// A path that holds no model.
    #[error("{}: no run, no weights and no training state", path.display())]
    NoModel {
        /// The path.
        path: PathBuf,
        /// What was found instead.
        #[source]
        source: Box<CliError>,
    },
    /// Bare ids for a model of bytes.
    #[error(
        "{}: a file of token ids, but {} was trained on text byte by byte; give the text itself",
        path.display(),
        run.display()
    )]
    IdsForBytes {
        /// The file of ids.
        path: PathBuf,
        /// The model's run.
        run: PathBuf,
    },
    /// A run that another process holds.
    #[error("{}: another process trains this run", path.display())]
    Busy {
        /// The run's folder.
        path: PathBuf,
    },
    /// A native file where a foreign checkpoint is wanted.
    #[error("{} is in the native format already; `import` takes a Hugging Face or state-spaces folder", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
    },
    /// A backbone where a language model is needed.
    #[error("{} holds a bare backbone; `{command}` needs a language model", path.display())]
    NoHead {
        /// The path.
        path: PathBuf,
        /// The command.
        command: &'static str,
    },
    /// Data that cannot be read or trained on.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Too little text to measure a model on.
    #[error(
        "{}: {tokens} tokens to measure the model on are no window of `--seq-len` {seq_len} and one more; give {remedy}",
        path.display()
    )]
    NoWindow {
        /// The data's path.
        path: PathBuf,
        /// Tokens of the validation part.
        tokens: usize,
        /// Tokens of a window.
        seq_len: usize,
        /// What to give.
        remedy: &'static str,
    },
    /// A file of ids that the tokenizer does not know.
    #[error(
        "{}: its ids go up to {}, the tokenizer has {tokenizer} tokens; give the tokenizer that made the file",
        path.display(),
        found - 1
    )]
    ForeignIds {
        /// The file.
        path: PathBuf,
        /// Largest id and one more.
        found: usize,
        /// Tokens of the tokenizer.
        tokenizer: usize,
    },
    /// The data of a run is not what it was when the run began.
    #[error(
        "{}: the data changed since the run began (it had {expected_tokens} tokens with checksum {expected:08x}, it has \
         {found_tokens} with {found:08x}); restore it, or point `--data` to a copy",
        path.display()
    )]
    DataChanged {
        /// The data's path.
        path: PathBuf,
        /// Checksum then.
        expected: u32,
        /// Tokens then.
        expected_tokens: u64,
        /// Checksum now.
        found: u32,
        /// Tokens now.
        found_tokens: u64,
    },
    /// Vocabulary of the data and of the model differ.
    #[error("{what} need a vocabulary of {data}, the model has {model}; give {remedy}")]
    Vocabulary {
        /// What the data consists of.
        what: &'static str,
        /// What to give.
        remedy: &'static str,
        /// Vocabulary of the data.
        data: usize,
        /// Vocabulary of the model.
        model: usize,
    },
    /// A prompt that gives no tokens.
    #[error("`--prompt` {problem}")]
    Prompt {
        /// What is wrong.
        problem: String,
    },
    /// The model's output is not finite.
    #[error("the logit of token {token} is {value}; the weights do not make sense")]
    Logit {
        /// Token id.
        token: usize,
        /// The logit.
        value: f32,
    },
    /// More memory than there is.
    #[error(
        "this needs at least {needed_gib:.1} GiB of memory, {available_gib:.1} GiB are available; take a smaller model, \
         `--batch` or `--seq-len`{recompute}"
    )]
    Memory {
        /// Mentions `--recompute` where it would help.
        recompute: &'static str,
        /// Memory of weights, moments and activations.
        needed_gib: f64,
        /// Memory that is free.
        available_gib: f64,
    },
    /// A picture that could not be drawn.
    #[error("{}: cannot draw: {problem}", path.display())]
    Plot {
        /// The picture.
        path: PathBuf,
        /// What the drawing library says.
        problem: String,
    },
    /// The signal handler could not be installed.
    #[error("cannot watch for Ctrl-C")]
    Signals(#[source] ctrlc::Error),
}

/// Result with [`CliError`].
pub type Result<T> = std::result::Result<T, CliError>;

impl CliError {
    /// 2 for what the command line alone shows to be wrong, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Flag { .. }
            | Self::Sizes(_)
            | Self::Optim(OptimError::Setting { .. })
            | Self::Prompt { .. } => 2,
            Self::Trainer(TrainerError::Setting { .. } | TrainerError::Optim(OptimError::Setting { .. })) => {
                2
            }
            _ => 1,
        }
    }

    /// A setting of the optimizer under the name of its flag.
    pub fn of_optimizer(error: OptimError) -> Self {
        let OptimError::Setting { name, value, expected } = error else { return error.into() };
        // That they are above 0 and below 1 in 32 bits is no news to most.
        let expected = expected.strip_suffix(" as an f32").unwrap_or(expected);
        let flag = match name {
            "lr" => "--lr",
            "weight_decay" => "--weight-decay",
            "beta1" => "--beta1",
            "beta2" => "--beta2",
            "eps" => "--eps",
            _ => return error.into(),
        };
        Self::Flag { flag, value: value.to_string(), expected }
    }

    /// A size of the model under the name of its flag.
    pub fn of_sizes(error: ModelError) -> Self {
        let ModelError::Config { field, value, expected } = error else { return Self::Sizes(error) };
        let flag = match field {
            "d_model" => "--d-model",
            "n_layers" => "--layers",
            "d_state" => "--d-state",
            "d_conv" => "--d-conv",
            "expand" => "--expand",
            _ => return Self::Sizes(ModelError::Config { field, value, expected }),
        };
        Self::Flag { flag, value, expected }
    }

    /// What else can be done, where the message and its causes do not say.
    fn remedy(&self) -> Option<String> {
        match self {
            Self::Data(DataError::TooShort { .. }) => {
                Some("give more text, or a smaller `--batch` or `--seq-len`".to_owned())
            }
            Self::Data(DataError::Wide { .. }) => Some("give `--token-width u32`".to_owned()),
            Self::Damaged { run, .. } => {
                Some(format!("`--init-from {}` starts a new run from its newest weights", run.display()))
            }
            _ => None,
        }
    }

    /// Whether the reader of stdout has gone away, which is no error of ours.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The message, its causes and the remedy in one line.
    pub fn one_line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        if let Some(remedy) = self.remedy() {
            line.push_str("; ");
            line.push_str(&remedy);
        }
        line.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// Makes an [`CliError::Io`] of an operating-system error.
pub fn io<'a>(path: &'a Path, action: &'static str) -> impl FnOnce(std::io::Error) -> CliError + 'a {
    move |source| CliError::Io { path: path.to_owned(), action, source }
}

/// A flag that must be at least 1.
pub fn at_least_one<T: PartialOrd + From<u8> + ToString>(flag: &'static str, value: T) -> Result<T> {
    match value < T::from(1) {
        true => Err(CliError::Flag { flag, value: value.to_string(), expected: "at least 1" }),
        false => Ok(value),
    }
}

/// Checks a number of threads.
pub fn thread_count(value: usize) -> Result<usize> {
    match (1..=mamba_model::cpu::MAX_THREADS).contains(&value) {
        true => Ok(value),
        false => Err(CliError::Flag { flag: "--threads", value: value.to_string(), expected: "1 to 1,024" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_come_in_one_line() {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no such\nfile");
        let error = io(Path::new("a/b"), "open")(source);
        assert_eq!(error.one_line(), "a/b: cannot open: no such; file");
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn bad_flags_are_usage_errors() {
        let error = at_least_one("--batch", 0usize).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.one_line()),
            (2, "`--batch` is 0; it must be at least 1".to_owned())
        );
        assert_eq!(at_least_one("--batch", 1u64).unwrap(), 1);
    }
}
