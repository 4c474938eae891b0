//! Everything that can go wrong, as one line for the user and an exit code for scripts.

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
    #[error("{} exists already; give a new path, or `--resume` to go on with a run", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
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
    Data(#[from] mamba_data::DataError),
    /// Too little text to measure a model on.
    #[error(
        "{}: {tokens} tokens to measure the model on are no window of `--seq-len` {seq_len} and one more; give more \
         text, a larger `--val-fraction` or a smaller `--seq-len`",
        path.display()
    )]
    NoWindow {
        /// The data's path.
        path: PathBuf,
        /// Tokens of the validation part.
        tokens: usize,
        /// Tokens of a window.
        seq_len: usize,
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
    #[error(
        "the tokenizer of the data has {data} tokens, the model {model}; give the tokenizer that belongs to the model"
    )]
    Vocabulary {
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
         `--batch` or `--seq-len`, or `--recompute`"
    )]
    Memory {
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

    /// Whether the reader of stdout has gone away, which is no error of ours.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The message and its causes in one line.
    pub fn one_line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
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
