//! `mamba train`: a new run, or one that goes on.

mod session;
pub mod settings;
mod stop;

use crate::args::{MachineArgs, ModelArgs, TrainArgs};
use crate::data::{Corpus, DataSpec};
use crate::error::{CliError, Result, at_least_one};
use crate::memory;
use crate::report::{print_line, thousands};
use crate::run_folder::{RunConfig, RunFolder};
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
        at_least_one("--threads", threads)?;
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
        return Err(CliError::Exists { path: out.to_owned() });
    }
    let weights = first_weights(&args.model, &settings, &spec, args.machine.device)?;
    let corpus = Corpus::open(&spec)?;
    let (weights, fresh) = match weights {
        Some(weights) => (weights, false),
        None => {
            let model = model_config(&args.model, corpus.vocab_size())?;
            memory::check(&model, settings.batch, settings.seq_len, settings.recompute, args.machine.device)?;
            (MambaWeights::init(&model, settings.seed)?, true)
        }
    };
    check_vocabulary(&corpus, weights.config())?;
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
    let saved = TrainingState::read(&folder.last_state())?;
    let state = RunState::decode(&saved.user, &folder.last_state())?;
    if state.step >= config.train.steps {
        print_line(&format!("{}: all {} steps are done", root.display(), config.train.steps));
        return Ok(());
    }
    let corpus = Corpus::open(&config.data)?;
    let found = corpus.fingerprint();
    if found != config.fingerprint {
        return Err(CliError::DataChanged {
            path: config.data.path,
            expected: config.fingerprint.crc32,
            expected_tokens: config.fingerprint.tokens,
            found: found.crc32,
            found_tokens: found.tokens,
        });
    }
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
            memory::check(&model, settings.batch, settings.seq_len, settings.recompute, device)?;
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
    config.validate().map_err(CliError::Sizes)?;
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

fn check_vocabulary(corpus: &Corpus, model: &ModelConfig) -> Result<()> {
    let (data, model) = (corpus.vocab_size(), model.lm.as_ref().map_or(0, |lm| lm.vocab_size));
    match data <= model {
        true => Ok(()),
        false => Err(CliError::Vocabulary { data, model }),
    }
}

fn build(weights: MambaWeights, settings: &TrainSettings, machine: &MachineArgs) -> Result<LmTrainer> {
    memory::check(weights.config(), settings.batch, settings.seq_len, settings.recompute, machine.device)?;
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
    let parameters = thousands(ctx.table.param_count() as u64);
    let origin = if fresh { "random weights" } else { "given weights" };
    print_line(&format!(
        "model    {parameters} parameters: d_model {}, {} layers, {origin}",
        b.d_model, b.n_layers
    ));
    print_line(&format!(
        "data     {}: {} training and {} validation tokens",
        config.data.path.display(),
        thousands(train_tokens),
        thousands(val_tokens)
    ));
    print_line(&format!(
        "training {} steps of {} tokens on {} in {}",
        thousands(train.steps),
        thousands(train.tokens_per_step()),
        ctx.device,
        ctx.dtype
    ));
    print_line(&format!("run      {}", folder.root().display()));
}
