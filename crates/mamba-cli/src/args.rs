//! The command line.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    ArgMatches, Args, Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use mamba_data::Width;
use mamba_trainer::{Device, GemmMode, WeightDtype};
use std::ffi::OsString;
use std::path::PathBuf;

/// Trains, evaluates and samples Mamba language models.
#[derive(Debug, Parser)]
#[command(
    name = "mamba",
    version,
    max_term_width = 100,
    after_help = "`mamba COMMAND -h` sums up the options of a command, `mamba COMMAND --help` tells more."
)]
pub struct Cli {
    /// Prints diagnostics to stderr; twice for more.
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line.
    ///
    /// # Errors
    /// What clap finds, help and version among it; [`ErrorKind::ArgumentConflict`] for a flag that a resumed run fixes.
    pub fn read(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        // Negative numbers are values, so that the check of the value tells what is wrong with them.
        let mut command = Self::command().mut_subcommands(|c| {
            c.mut_args(|a| if a.get_action().takes_values() { a.allow_negative_numbers(true) } else { a })
        });
        let matches = command.try_get_matches_from_mut(args)?;
        if let Some(("train", train)) = matches.subcommand() {
            check_resume(&mut command, train)?;
        }
        Self::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
    }
}

/// Flags beside `--resume` that leave the run as it is.
const BESIDE_RESUME: [&str; 7] =
    ["resume", "data", "device", "threads", "log_every", "stop_after", "verbose"];

/// Refuses the first flag that would change a resumed run.
fn check_resume(command: &mut Clap, train: &ArgMatches) -> Result<(), clap::Error> {
    let Some(run) = train.get_one::<PathBuf>("resume") else { return Ok(()) };
    let given = |id: &str| train.value_source(id) == Some(ValueSource::CommandLine);
    let flags = command.find_subcommand("train").into_iter().flat_map(Clap::get_arguments);
    let changing = flags.filter(|a| !BESIDE_RESUME.contains(&a.get_id().as_str()));
    let Some(flag) = changing.filter(|a| given(a.get_id().as_str())).find_map(|a| a.get_long()) else {
        return Ok(());
    };
    let text = format!(
        "`--{flag}` cannot go with `--resume`: a run goes on with the settings that it began with; to change them, \
         start a new run from its weights with `--data PATH --init-from {}`",
        run.display()
    );
    Err(command.error(ErrorKind::ArgumentConflict, text))
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trains a language model on text and writes a run folder; or goes on with one.
    ///
    /// `mamba train --data .` learns from all text below this folder, byte by byte. The run folder holds the
    /// config, checkpoints, metrics.jsonl, a TensorBoard event file and the loss curve as SVG and PNG. Ctrl-C
    /// finishes the step, saves and exits; `mamba train --resume RUN` goes on with the same bits as a run that was
    /// never interrupted.
    Train(Box<TrainArgs>),
    /// Writes text with a trained model.
    Generate(GenerateArgs),
    /// Measures loss, perplexity and bits per byte of a model on a text.
    Eval(EvalArgs),
    /// Says what a run, checkpoint, state or weights file holds.
    Info(InfoArgs),
    /// Writes a model's weights in another format.
    Export(ExportArgs),
    /// Reads a Hugging Face or state-spaces checkpoint into the native format.
    Import(ImportArgs),
    /// Times training steps on random tokens.
    Bench(BenchArgs),
}

/// Options of `train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Text file, folder of text, or .bin file of u16 or u32 token ids. Of a folder are left out: hidden files,
    /// files that are no UTF-8 text, and what a .gitignore or .ignore file inside the folder names.
    #[arg(long, value_name = "PATH", required_unless_present = "resume")]
    pub data: Option<PathBuf>,
    /// Hugging Face tokenizer.json; without it text is read byte by byte.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Width of the ids of a .bin file without llm.c's header.
    #[arg(long, value_enum, default_value_t = TokenWidth::U16)]
    pub token_width: TokenWidth,
    /// Part of the data that is kept for validation.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub val_fraction: f64,
    /// New folder of the run [default: runs/N with the next free N].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Goes on with this run where it was saved. Takes only --data (where the data has moved), --device, --threads,
    /// --log-every and --stop-after beside it.
    #[arg(long, value_name = "RUN")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Width of a token id in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenWidth {
    /// 16 bits, as nanoGPT writes them.
    U16,
    /// 32 bits.
    U32,
}

impl From<TokenWidth> for Width {
    fn from(width: TokenWidth) -> Self {
        match width {
            TokenWidth::U16 => Self::U16,
            TokenWidth::U32 => Self::U32,
        }
    }
}

/// Size of the model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Width of the residual stream.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub d_model: usize,
    /// Blocks.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub layers: usize,
    /// States per channel of the selective scan, at most 256.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub d_state: usize,
    /// Width of the causal convolution, at most 32.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub d_conv: usize,
    /// Width inside a block, in multiples of d_model.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub expand: usize,
    /// A head of its own instead of the transposed embedding.
    #[arg(long)]
    pub untied: bool,
    /// Starts from these weights (a run, a weights file, a Hugging Face or state-spaces folder) instead of random
    /// ones; they give the model's size.
    #[arg(
        long,
        value_name = "MODEL",
        conflicts_with_all = ["d_model", "layers", "d_state", "d_conv", "expand", "untied"]
    )]
    pub init_from: Option<PathBuf>,
}

/// Length of the training and its learning rate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub struct ScheduleArgs {
    /// Sequences a step (and micro-batch).
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub batch: usize,
    /// Tokens a sequence.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub seq_len: usize,
    /// Micro-batches whose gradients are averaged in one step.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub accumulate: usize,
    /// Steps of the whole training.
    #[arg(long, value_name = "N", default_value_t = 2500)]
    pub steps: u64,
    /// Highest learning rate.
    #[arg(long, value_name = "RATE", default_value_t = 4e-3)]
    pub lr: f64,
    /// Course of the learning rate after the warm-up.
    #[arg(long, value_enum, default_value_t = ScheduleName::Cosine)]
    pub schedule: ScheduleName,
    /// Steps of linear warm-up [default: a tenth of --steps, at most 100].
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Last learning rate, as a share of --lr.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub min_lr_factor: f64,
    /// Share of --steps in which `wsd` decays.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub decay_share: f64,
    /// Seed of the initial weights, the order of the data and the sample.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Reads each sequence of the batch in order and carries the recurrent state from window to window.
    #[arg(long)]
    pub stateful: bool,
}

/// Course of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScheduleName {
    /// Stays at --lr.
    Constant,
    /// Falls on a line to its last value.
    Linear,
    /// Falls on half a cosine to its last value.
    Cosine,
    /// Stays at --lr, then falls on a line in the last --decay-share of the steps.
    Wsd,
}

/// AdamW, clip and skip.
#[derive(Debug, Args)]
#[command(next_help_heading = "Optimizer")]
pub struct OptimizerArgs {
    /// Decoupled weight decay of everything but A_log, D, the bias of Δ and the scales of the norms.
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub weight_decay: f64,
    /// Decay rate of the first moment.
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    pub beta1: f64,
    /// Decay rate of the second moment.
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    pub beta2: f64,
    /// Term beside the root of the second moment.
    #[arg(long, value_name = "X", default_value_t = 1e-8)]
    pub eps: f64,
    /// Largest global norm of the gradient; 0 turns clipping off.
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub clip: f64,
    /// Skips steps whose gradient norm is above this.
    #[arg(long, value_name = "NORM")]
    pub skip_above: Option<f64>,
    /// Skips steps whose gradient norm lies more than Z standard deviations above the mean of the last 128 steps' norms.
    #[arg(long, value_name = "Z")]
    pub skip_z_score: Option<f64>,
}

/// Where and in which precision to train.
#[derive(Debug, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Device,
    /// Threads of the CPU engine; the result does not depend on it [default: all cores].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// f32, tf32, bf16 or f16 [default: f32 on the CPU, bf16 on a GPU].
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<WeightDtype>,
    /// Matrix products: deterministic, cublas-fast or cublas-pedantic.
    #[arg(long, value_name = "MODE", default_value = "deterministic")]
    pub gemm: GemmMode,
    /// Recomputes activations in the backward pass: same bits, less memory, more time.
    #[arg(long)]
    pub recompute: bool,
}

/// What is reported and saved, and when.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reports")]
pub struct ReportArgs {
    /// Steps between validations; 0: only at the end.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub eval_every: u64,
    /// Batches of a validation during the training; the one at the end takes up to 8 times as many.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub eval_batches: usize,
    /// Steps between checkpoints; 0: only at the end.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub save_every: u64,
    /// Steps between logged lines.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub log_every: u64,
    /// Saves and exits after this many steps, as Ctrl-C would.
    #[arg(long, value_name = "N")]
    pub stop_after: Option<u64>,
    /// Tokens of the sample at the end; 0: none.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub sample_tokens: usize,
    /// Begin of the sample [default: begin of the validation text].
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
}

/// Options of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Run folder (its newest weights; those of the lowest validation loss are its checkpoints/best.safetensors),
    /// weights file, state file, Hugging Face or state-spaces folder.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Hugging Face tokenizer.json [default: the one beside the model; else bytes for a vocabulary of 256].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Text to go on from; for a model without tokenizer: token ids, separated by blanks.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Tokens to write.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub tokens: usize,
    /// Writes each piece as soon as it is known.
    #[arg(long)]
    pub stream: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Machine")]
    pub device: Device,
    /// f32, tf32, bf16 or f16 [default: f32 on the CPU, bf16 on a GPU].
    #[arg(long, value_name = "TYPE", help_heading = "Machine")]
    pub dtype: Option<WeightDtype>,
    /// Threads of the CPU [default: all cores].
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub threads: Option<usize>,
}

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divides the logits; 0 always takes the likeliest token.
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub temperature: f64,
    /// Draws among the K likeliest tokens only.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Draws among the likeliest tokens that together reach this probability.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Seed; the same seed gives the same text on every machine.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Options of `eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Run folder (its newest weights; those of the lowest validation loss are its checkpoints/best.safetensors),
    /// weights file, state file, Hugging Face or state-spaces folder.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Text file, folder of text (read as in training), or .bin file of token ids; every whole window of it is
    /// measured.
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// Hugging Face tokenizer.json [default: the one beside the model; else bytes for a vocabulary of 256].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Width of the ids of a .bin file without llm.c's header.
    #[arg(long, value_enum, default_value_t = TokenWidth::U16)]
    pub token_width: TokenWidth,
    /// Sequences at a time.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub batch: usize,
    /// Tokens of a window; each starts from the empty state [default: that of the model's run, else 256].
    #[arg(long, value_name = "N")]
    pub seq_len: Option<usize>,
    /// Stops after this many batches.
    #[arg(long, value_name = "N")]
    pub max_batches: Option<usize>,
    /// auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Device,
    /// f32, tf32, bf16 or f16 [default: f32 on the CPU, bf16 on a GPU].
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<WeightDtype>,
    /// Threads of the CPU engine [default: all cores].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Run folder, weights file, state file, Hugging Face or state-spaces folder.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Lists every tensor with its shape.
    #[arg(long)]
    pub tensors: bool,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run folder (its newest weights; those of the lowest validation loss are its checkpoints/best.safetensors),
    /// weights file, state file, Hugging Face or state-spaces folder.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Format to write.
    #[arg(long, value_enum)]
    pub format: FormatName,
    /// f32, bf16 or f16; native files are always f32.
    #[arg(long, value_enum, default_value_t = ExportDtype::F32)]
    pub dtype: ExportDtype,
    /// New folder; for native, a new .safetensors file.
    #[arg(long, value_name = "PATH")]
    pub out: PathBuf,
}

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Hugging Face or state-spaces folder.
    #[arg(long, value_name = "FOLDER")]
    pub from: PathBuf,
    /// New .safetensors file in the native format.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// A format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// Folder that `transformers` loads as MambaForCausalLM.
    Hf,
    /// Folder with the names of the state-spaces repository.
    StateSpaces,
    /// One .safetensors file with our names and the config.
    Native,
}

/// Number format of exported weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportDtype {
    /// Exact.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to f16.
    F16,
}

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Width of the residual stream.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub d_model: usize,
    /// Blocks.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub layers: usize,
    /// States per channel.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub d_state: usize,
    /// Tokens in the vocabulary.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub vocab: usize,
    /// Sequences a step.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub batch: usize,
    /// Tokens a sequence.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub seq_len: usize,
    /// Timed steps, after two to warm up.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: usize,
    #[command(flatten)]
    pub machine: BenchMachineArgs,
}

/// Where and in which precision to time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Machine")]
pub struct BenchMachineArgs {
    /// auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Device,
    /// Threads of the CPU engine [default: all cores].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// f32, tf32, bf16 or f16 [default: f32 on the CPU, bf16 on a GPU].
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<WeightDtype>,
    /// Matrix products: deterministic, cublas-fast or cublas-pedantic.
    #[arg(long, value_name = "MODE", default_value = "deterministic")]
    pub gemm: GemmMode,
    /// Recomputes activations in the backward pass.
    #[arg(long)]
    pub recompute: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn resume_refuses_what_would_change_the_run() {
        let parse = |extra: &[&str]| {
            let base = ["mamba", "train", "--resume", "runs/1"];
            Cli::read(base.iter().chain(extra))
        };
        assert!(parse(&[]).is_ok());
        assert!(parse(&["--data", "x", "--threads", "2", "--device", "cpu", "--stop-after", "3"]).is_ok());
        for bad in [
            ["--lr", "0.1"],
            ["--steps", "5"],
            ["--d-model", "64"],
            ["--clip", "2"],
            ["--dtype", "f32"],
            ["--eval-every", "3"],
            ["--out", "y"],
        ] {
            let error = parse(&bad).unwrap_err().to_string();
            let only = error.contains(bad[0]) && error.contains("--init-from runs/1");
            assert!(only && error.matches("--").count() < 6, "{bad:?}: {error}");
        }
        assert!(Cli::read(["mamba", "train"]).is_err());
    }
}
