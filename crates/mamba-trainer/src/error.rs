use mamba_cuda::CudaError;
use mamba_kernels::KernelError;
use mamba_model::ModelError;
use mamba_optim::OptimError;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that can go wrong in this crate. A call that returns one of these left the trainer as it was,
/// unless its documentation says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// The model refused an input, a state or a config.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The optimizer refused a setting or a state.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// The GPU failed. What it was doing is lost: build the trainer again and load the last state.
    #[error(transparent)]
    Device(#[from] KernelError),
    /// A device, precision or mode that this machine or engine does not have.
    #[error("{what} `{requested}` is not available here; available: {available}")]
    NotAvailable {
        /// What was chosen: `device`, `dtype` or `gemm mode`.
        what: &'static str,
        /// The choice.
        requested: String,
        /// What can be chosen instead.
        available: String,
    },
    /// A name that cannot be parsed.
    #[error("`{given}` is no {what}; use {expected}")]
    Parse {
        /// What was expected: `device`, `dtype` or `gemm mode`.
        what: &'static str,
        /// The text given.
        given: String,
        /// The accepted forms.
        expected: &'static str,
    },
    /// A setting outside its range.
    #[error("`{name}` is {value}; it must be {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The value given, printed.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The session does not fit the memory.
    #[error("the session needs at least {bytes} bytes, which cannot be had; take a smaller batch or seq_len")]
    OutOfMemory {
        /// A lower bound of what is needed.
        bytes: u64,
    },
    /// The kind of trainer does not fit the model.
    #[error("{trainer} trains {needs}; these weights belong to {has}")]
    WrongModel {
        /// The trainer's name.
        trainer: &'static str,
        /// What it trains.
        needs: &'static str,
        /// What it was given.
        has: &'static str,
    },
    /// A flat host buffer of the wrong length.
    #[error("`{name}` holds {got} elements, {expected} are needed ({layout})")]
    Length {
        /// The buffer.
        name: &'static str,
        /// Elements found.
        got: usize,
        /// Elements needed.
        expected: usize,
        /// Its layout.
        layout: &'static str,
    },
    /// A value of a host buffer that is not allowed.
    #[error("`{name}` holds {value} at flat index {index}; it must be {expected}")]
    Value {
        /// The buffer.
        name: &'static str,
        /// Flat index of the first offender.
        index: usize,
        /// The value found.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// `backward_step` without a forward to go back through.
    #[error("`{call}` needs a forward first: one `forward` feeds one backward")]
    NoPendingForward {
        /// The call.
        call: &'static str,
    },
    /// The pending forward was taken before a graph was captured or dropped.
    #[error(
        "the pending forward was taken in another mode (a graph was captured or dropped since); repeat it"
    )]
    StaleForward,
    /// An accumulation window is open and the call would break it.
    #[error(
        "`{call}` is not allowed while an accumulation window of {micro_batches} micro-batches is open; close it \
         with `apply_step` or drop it with `discard_window`"
    )]
    WindowOpen {
        /// The call.
        call: &'static str,
        /// Micro-batches in the window.
        micro_batches: u64,
    },
    /// No accumulation window is open.
    #[error("`{call}` needs an open accumulation window; open one with `accumulate_only`")]
    NoWindow {
        /// The call.
        call: &'static str,
    },
    /// An option of the closing call on an accumulating one.
    #[error("`{option}` belongs to the call that closes the window; it cannot go with `accumulate_only`")]
    OptionWhileAccumulating {
        /// The option.
        option: &'static str,
    },
    /// The call changes what a captured graph holds.
    #[error("`{call}` is not possible under a captured graph; call `drop_graph` first")]
    UnderGraph {
        /// The call.
        call: &'static str,
    },
    /// Capture before any eager fused step.
    #[error("`capture_graph` needs one eager fused step before it")]
    GraphNeedsEagerStep,
    /// The captured step no longer fits the trainer.
    #[error("the captured graph is stale: its {what} changed since the capture; capture again")]
    GraphStale {
        /// What changed.
        what: &'static str,
    },
    /// Every target of the window is ignored, so there is no mean.
    #[error(
        "no token of this window counts: every target is ignored or has weight 0; give at least one, or discard \
         the window"
    )]
    NoCountedTokens,
    /// The gradient of the input was not asked for when the trainer was built, or no backward has run.
    #[error("no input gradient: {why}")]
    NoInputGradient {
        /// The reason and what to do.
        why: &'static str,
    },
    /// A training-state file that cannot be read or does not belong to this trainer.
    #[error("{}: `{field}` {problem}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// The field inside it.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A training state of another trainer.
    #[error(
        "the training state does not belong to this trainer: its `{field}` is {found}, the trainer's {expected}"
    )]
    StateMismatch {
        /// The first field that differs.
        field: &'static str,
        /// The value in the state.
        found: String,
        /// The trainer's value.
        expected: String,
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
    /// Some ranks did not arrive in time.
    #[error("rank {rank} of {world} waited {waited:?} for ranks {missing:?}; they are dead or stuck")]
    RankTimeout {
        /// This rank.
        rank: usize,
        /// Ranks in the group.
        world: usize,
        /// The deadline.
        waited: Duration,
        /// Ranks that did not arrive.
        missing: Vec<usize>,
    },
    /// Another rank failed or left, so the group cannot go on.
    #[error(
        "rank {rank} of {world}: the group is broken since rank {broken_by} failed or left; make a new group"
    )]
    RankLost {
        /// This rank.
        rank: usize,
        /// Ranks in the group.
        world: usize,
        /// The rank that failed first.
        broken_by: usize,
    },
    /// The ranks do not run the same step.
    #[error("rank {rank}: `{field}` differs between ranks ({mine} here, {theirs} on rank {other})")]
    RankMismatch {
        /// This rank.
        rank: usize,
        /// What differs.
        field: &'static str,
        /// The value here.
        mine: f64,
        /// The value there.
        theirs: f64,
        /// The other rank.
        other: usize,
    },
}

impl From<CudaError> for TrainerError {
    fn from(error: CudaError) -> Self {
        Self::Device(error.into())
    }
}

/// Result with [`TrainerError`].
pub type Result<T> = std::result::Result<T, TrainerError>;

/// Checks the length of a flat buffer.
pub(crate) fn check_len(name: &'static str, got: usize, expected: usize, layout: &'static str) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(TrainerError::Length { name, got, expected, layout }),
    }
}

/// `Err` unless `value` is finite and above 0: learning rates and thresholds.
pub(crate) fn check_positive(name: &'static str, value: f64) -> Result<()> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => {
            Err(TrainerError::Setting { name, value: value.to_string(), expected: "finite and above 0" })
        }
    }
}
