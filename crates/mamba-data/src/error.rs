use std::path::PathBuf;

/// What can go wrong with data. Each variant names the file or the field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A file that cannot be read as what it should be.
    #[error("{}: `{field}` {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Field inside it.
        field: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// Nothing to read.
    #[error("{}: {problem}", path.display())]
    NoText {
        /// The file or folder.
        path: PathBuf,
        /// What is there instead.
        problem: String,
    },
    /// A file of 32-bit ids that was opened as one of 16-bit ids.
    #[error("{}: every second of its 16-bit ids is 0; it looks like a file of 32-bit ids", path.display())]
    Wide {
        /// The file.
        path: PathBuf,
    },
    /// Too little to learn from.
    #[error("{}: {tokens} tokens, at least {needed} are needed ({why})", path.display())]
    TooShort {
        /// The data.
        path: PathBuf,
        /// Tokens found.
        tokens: u64,
        /// Tokens needed.
        needed: u64,
        /// What for.
        why: &'static str,
    },
    /// A setting out of range.
    #[error("`{field}` is {value}; it must be {expected}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A text that the tokenizer refused.
    #[error("the tokenizer cannot {action}: {problem}")]
    Tokenizer {
        /// What was tried.
        action: &'static str,
        /// Its own words.
        problem: String,
    },
}

/// Result with [`DataError`].
pub type Result<T> = std::result::Result<T, DataError>;

pub(crate) fn io(path: &std::path::Path, action: &'static str) -> impl FnOnce(std::io::Error) -> DataError {
    let path = path.to_owned();
    move |source| DataError::Io { path, action, source }
}

pub(crate) fn setting(field: &'static str, value: impl ToString, expected: &'static str) -> DataError {
    DataError::Setting { field, value: value.to_string(), expected }
}
