//! `mamba train`: a new run, or one that goes on.

mod session;
pub mod settings;
mod stop;

use crate::args::{MachineArgs, ModelArgs, TrainArgs};
use crate::data::{Corpus, DataSpec};
use crate::error::{CliError, Result, at_least_one, thread_count};
use crate::memory;
use crate::report::{count, print_line, thousands};
use crate::run_folder::{RunConfig, RunFolder, is_run};
use crate::weights;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_trainer::{Device, LmTrainer, TrainingState};
use session::{RunState, Session};
use settings::TrainSettings;
use std::path::Path;
use stop::Stop;

/// Windows in a row that may be skipped before the training gives up.
const SKIP_LIMIT: u32 = 20;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<()> {
    if let Some(threads) = args.machine.threads {
        thread_count(threads)?;
    }
    if let Some(steps) = args.reports.stop_after {
        at_least_one("--stop-after", steps)?;
    }
    match (&args.resume, &args.data) {
        (Some(root), _) => resume(root, args),
        (None, Some(data)) => begin(data, args),
        (None, None) => {
            Err(CliError::Flag { flag: "--data", value: "absent".to_owned(), expected: "given, or --resume" })
        }
    }
}

fn begin(data: &Path, args: &TrainArgs) -> Result<()> {
    let settings = TrainSettings::from_args(args)?;
    let spec = data_spec(data, args)?;
    if let Some(out) = args.out.as_deref().filter(|out| out.exists()) {
        let path = out.to_owned();
        return Err(if is_run(out) { CliError::RunExists { path } } else { CliError::Exists { path } });
    }
    let weights = first_weights(&args.model, &settings, &spec, args.machine.device)?;
    let corpus = Corpus::open(&spec)?;
    let (weights, fresh) = match weights {
        Some(weights) => (weights, false),
        None => {
            let model = model_config(&args.model, corpus.vocab_size())?;
            check_memory(&model, &settings, args.machine.device)?;
            (MambaWeights::init(&model, settings.seed)?, true)
        }
    };
    corpus.check_vocabulary(weights.config())?;
    let trainer = build(weights, &settings, &args.machine)?;
    let model = trainer.ctx().model.clone();
    let config = RunConfig::new(model, spec, corpus.fingerprint(), settings);
    let mut batches = session::train_batches(&corpus, &config)?;
    let validation = session::Validation::new(&corpus, &config)?;
    let folder = RunFolder::create(args.out.as_deref(), &config)?;
    if let Some(tokenizer) = &config.data.tokenizer {
        folder.keep_tokenizer(tokenizer)?;
    }
    headline(&trainer, &corpus, &config, &folder, fresh);
    let state = RunState::new(&batches);
    let stop = Stop::watch()?;
    Session::new(trainer, &corpus, &mut batches, validation, folder, config, state)?
        .run(args.reports.stop_after, &stop)
}

fn resume(root: &Path, args: &TrainArgs) -> Result<()> {
    let (folder, mut config) = RunFolder::open(root)?;
    if let Some(data) = &args.data {
        config.data.path = absolute(data)?;
    }
    let (saved, state) = read_state(&folder)?;
    if state.step >= config.train.steps {
        let done = count(config.train.steps, "step");
        print_line(&format!("{}: nothing is left to do after {done}", root.display()));
        return Ok(());
    }
    let corpus = same_data(&config)?;
    let mut trainer = build(saved.weights.clone(), &config.train, &args.machine)?;
    trainer.load_training_state(&saved)?;
    let mut batches = session::train_batches(&corpus, &config)?;
    batches.seek(&state.data)?;
    let validation = session::Validation::new(&corpus, &config)?;
    print_line(&format!("{}: goes on at step {} of {}", root.display(), state.step, config.train.steps));
    let stop = Stop::watch()?;
    Session::new(trainer, &corpus, &mut batches, validation, folder, config, state)?
        .run(args.reports.stop_after, &stop)
}

/// The state that a run was saved in.
fn read_state(folder: &RunFolder) -> Result<(TrainingState, RunState)> {
    let (path, run) = (folder.last_state(), folder.root().to_owned());
    if !path.exists() {
        return Err(CliError::NoCheckpoint { path: run });
    }
    let read = || -> Result<_> {
        let saved = TrainingState::read(&path)?;
        let state = RunState::decode(&saved.user, &path)?;
        Ok((saved, state))
    };
    read().map_err(|source| CliError::Damaged { run, source: Box::new(source) })
}

/// The data of a run, where it is what it was when the run began.
fn same_data(config: &RunConfig) -> Result<Corpus> {
    let corpus = Corpus::open(&config.data)?;
    let (expected, found) = (config.fingerprint, corpus.fingerprint());
    match found == expected {
        true => Ok(corpus),
        false => Err(CliError::DataChanged {
            path: config.data.path.clone(),
            expected: expected.crc32,
            expected_tokens: expected.tokens,
            found: found.crc32,
            found_tokens: found.tokens,
        }),
    }
}

/// Weights of `--init-from`. Without it the sizes are checked now, before the data is read.
fn first_weights(
    args: &ModelArgs,
    settings: &TrainSettings,
    spec: &DataSpec,
    device: Device,
) -> Result<Option<MambaWeights>> {
    tracing::debug!(?settings, ?spec, "settings");
    match &args.init_from {
        Some(path) => Ok(Some(weights::load_lm(path, "train")?)),
        None => {
            let model = model_config(args, 256)?;
            check_memory(&model, settings, device)?;
            Ok(None)
        }
    }
}

fn model_config(args: &ModelArgs, vocab_size: usize) -> Result<ModelConfig> {
    let backbone = MambaConfig {
        d_state: args.d_state,
        d_conv: args.d_conv,
        expand: args.expand,
        ..MambaConfig::new(args.d_model, args.layers)
    };
    let head = LmHeadConfig { tied: !args.untied, ..LmHeadConfig::new(vocab_size) };
    let config = ModelConfig::language_model(backbone, head);
    config.validate().map_err(CliError::of_sizes)?;
    Ok(config)
}

fn data_spec(data: &Path, args: &TrainArgs) -> Result<DataSpec> {
    let val_fraction = args.val_fraction;
    if !(val_fraction > 0.0 && val_fraction < 1.0) {
        let value = val_fraction.to_string();
        return Err(CliError::Flag { flag: "--val-fraction", value, expected: "above 0 and below 1" });
    }
    let tokenizer = args.tokenizer.as_deref().map(absolute).transpose()?;
    Ok(DataSpec { path: absolute(data)?, tokenizer, val_fraction, token_width: args.token_width.into() })
}

/// A run may be resumed from another folder.
fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    path.canonicalize().map_err(crate::error::io(path, "open"))
}

fn check_memory(model: &ModelConfig, settings: &TrainSettings, device: Device) -> Result<()> {
    memory::check(model, settings.batch, settings.seq_len, Some(settings.recompute), device)
}

fn build(weights: MambaWeights, settings: &TrainSettings, machine: &MachineArgs) -> Result<LmTrainer> {
    check_memory(weights.config(), settings, machine.device)?;
    let adamw = &settings.adamw;
    let mut builder = LmTrainer::builder(weights, settings.batch, settings.seq_len)
        .device(machine.device)
        .dtype(settings.dtype)
        .gemm_mode(settings.gemm)
        .lr(adamw.lr())
        .weight_decay(adamw.weight_decay())
        .betas(adamw.beta1(), adamw.beta2())
        .eps(adamw.eps())
        .step_opts(settings.step_opts)
        .recompute(settings.recompute)
        .skip_limit(SKIP_LIMIT);
    if let Some(threads) = machine.threads {
        builder = builder.threads(threads);
    }
    Ok(builder.build()?)
}

fn headline(trainer: &LmTrainer, corpus: &Corpus, config: &RunConfig, folder: &RunFolder, fresh: bool) {
    let ctx = trainer.ctx();
    let (b, train) = (&ctx.model.backbone, &config.train);
    let (train_tokens, val_tokens) = corpus.sizes();
    let parameters = count(ctx.table.param_count() as u64, "parameter");
    let layers = count(b.n_layers as u64, "layer");
    let origin = if fresh { "random weights" } else { "given weights" };
    print_line(&format!("model    {parameters}: d_model {}, {layers}, {origin}", b.d_model));
    let files = corpus.files().map_or(String::new(), |files| format!("; {files}"));
    print_line(&format!(
        "data     {}: {} training and {} validation tokens{files}",
        config.data.path.display(),
        thousands(train_tokens),
        thousands(val_tokens)
    ));
    print_line(&format!(
        "training {} of {} on {} in {}",
        count(train.steps, "step"),
        count(train.tokens_per_step(), "token"),
        ctx.device,
        ctx.dtype
    ));
    print_line(&format!("run      {}", folder.root().display()));
}
