use mamba_cuda::CudaError;
use mamba_kernels::KernelError;
use std::path::PathBuf;

/// Everything that can go wrong in this crate. Each variant names the field and the value, and its message
/// says what would be accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A configuration field lies outside what is supported.
    #[error("config field `{field}` is {value}; it must be {expected}")]
    Config {
        /// Field name as it is written in the config file.
        field: &'static str,
        /// The offending value, printed.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The parameter arena of this config would not fit the address space.
    #[error(
        "the model has too many parameters for any memory: `{tensor}` pushes the arena past {limit} elements"
    )]
    TooLarge {
        /// The tensor at which the limit was crossed.
        tensor: String,
        /// Largest supported arena, in elements.
        limit: usize,
    },
    /// A tensor name that the parameter table does not have.
    #[error("no tensor `{name}` in this model; its names are listed by `ParamTable::iter`")]
    UnknownTensor {
        /// The name asked for.
        name: String,
    },
    /// A tensor with another shape than the config asks for.
    #[error("tensor `{name}` has shape {got:?}, the config asks for {expected:?}")]
    Shape {
        /// Tensor name.
        name: String,
        /// Shape found.
        got: Vec<usize>,
        /// Shape the config gives.
        expected: Vec<usize>,
    },
    /// A flat buffer of the wrong length.
    #[error("`{name}` holds {got} elements, {expected} are needed ({layout})")]
    Length {
        /// The buffer.
        name: &'static str,
        /// Elements found.
        got: usize,
        /// Elements needed.
        expected: usize,
        /// Its layout, e.g. `[batch, seq_len, d_model]`.
        layout: &'static str,
    },
    /// A NaN or an infinity where finite values are required.
    #[error("tensor `{name}` holds {value} at flat index {index}; weights and states must be finite")]
    NonFinite {
        /// Tensor name.
        name: String,
        /// Flat index of the first offender.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} at position {index} is outside the vocabulary of {vocab_size}")]
    Token {
        /// The token id found.
        token: i64,
        /// Flat index into the batch.
        index: usize,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A call that this kind of model cannot serve (e.g. token ids to a backbone without embedding).
    #[error("{call} needs {needs}; this model has {has}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// What it needs.
        needs: &'static str,
        /// What the model has.
        has: &'static str,
    },
    /// The operating system refused to start the engine's threads.
    #[error("cannot start {threads} threads")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// Cause.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// A file that cannot be read, parsed or trusted.
    #[error("{}: `{field}` {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Field or tensor inside it.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },
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
    /// A kernel refused its arguments, or the GPU failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl From<CudaError> for ModelError {
    fn from(error: CudaError) -> Self {
        Self::Kernel(error.into())
    }
}

/// Result with [`ModelError`].
pub type Result<T> = std::result::Result<T, ModelError>;
