//! `mamba info`: what a path holds.

use crate::args::InfoArgs;
use crate::error::{CliError, Result};
use crate::report::{print_line, thousands};
use crate::run_folder;
use crate::weights::{self, Source};
use mamba_model::MambaWeights;
use mamba_trainer::TrainingState;
use std::path::Path;

/// Lines to print.
type Rows = Vec<(&'static str, String)>;

/// Runs the command.
pub fn run(args: &InfoArgs) -> Result<()> {
    let no_model = |source| match args.path.exists() {
        true => CliError::NoModel { path: args.path.clone(), source: Box::new(source) },
        false => source,
    };
    let source = weights::detect(&args.path).map_err(no_model)?;
    // Nothing is printed before all is read.
    let (about, weights) = match &source {
        Source::Run(root) => (training(root)?, weights::load(root)?),
        Source::State(path) => state(path).map_err(no_model)?,
        _ => (Vec::new(), weights::load(&args.path).map_err(no_model)?),
    };
    row("kind", source.describe());
    about.iter().for_each(|(name, value)| row(name, value));
    model(&weights, args.tensors);
    Ok(())
}

fn training(root: &Path) -> Result<Rows> {
    let config = run_folder::read_config(root)?;
    let train = &config.train;
    let mut rows = vec![
        ("data", config.data.path.display().to_string()),
        ("steps", thousands(train.steps)),
        ("batch", format!("{} x {} tokens, {} a step", train.batch, train.seq_len, train.accumulate)),
        ("dtype", train.dtype.to_string()),
    ];
    let metrics = root.join("metrics.jsonl");
    let records = if metrics.exists() { run_folder::read_records(&metrics)? } else { Vec::new() };
    if let Some(record) = records.iter().rev().find(|r| r.val_loss.is_some()) {
        let measured = measured(record.val_loss, record.val_bpb);
        let tokens = train.eval_batches.saturating_mul(train.batch * train.seq_len) as u64;
        let tokens = thousands(tokens);
        rows.push(("validation", format!("{measured} at step {} (at most {tokens} tokens)", record.step)));
    }
    if let Some(end) = run_folder::read_summary(root)? {
        let (measured, tokens) = (measured(end.val_loss, end.val_bpb), thousands(end.val_tokens));
        rows.push(("", format!("{measured} at step {} (final, {tokens} tokens)", end.steps)));
    }
    Ok(rows)
}

fn measured(loss: Option<f64>, bits: Option<f64>) -> String {
    let bits = bits.map_or(String::new(), |b| format!(", {b:.4} bits per byte"));
    format!("{:.4}{bits}", loss.unwrap_or(f64::NAN))
}

fn state(path: &Path) -> Result<(Rows, MambaWeights)> {
    let state = TrainingState::read(path)?;
    let mut rows = vec![
        ("step", thousands(state.optimizer.step)),
        ("window", format!("{} x {} tokens", state.session.batch, state.session.seq_len)),
        ("dtype", state.dtype.to_string()),
        ("rate", format!("{:e}", state.adamw.lr())),
    ];
    if let Some(scaler) = &state.scaler {
        rows.push(("loss scaler", format!("{scaler:?}")));
    }
    Ok((rows, state.weights))
}

fn model(weights: &MambaWeights, tensors: bool) {
    let config = weights.config();
    let b = &config.backbone;
    row("d_model", &b.d_model.to_string());
    row("n_layers", &b.n_layers.to_string());
    row("d_state", &b.d_state.to_string());
    row("d_conv", &b.d_conv.to_string());
    row("expand", &b.expand.to_string());
    row("dt_rank", &b.dt_rank().to_string());
    row("conv_bias", &b.conv_bias.to_string());
    row("proj_bias", &b.proj_bias.to_string());
    row("rms_norm_eps", &format!("{:e}", b.rms_norm_eps));
    if let Some(dim) = b.input_dim {
        row("input_dim", &dim.to_string());
    }
    match &config.lm {
        Some(lm) => {
            row("vocab_size", &format!("{} ({} rows)", lm.vocab_size, lm.rows()));
            row("head", if lm.tied { "tied to the embedding" } else { "of its own" });
        }
        None => row("head", "none: a bare backbone"),
    }
    let table = weights.table();
    row("parameters", &thousands(table.param_count() as u64));
    row("tensors", &table.iter().len().to_string());
    row("finite", if weights.check_finite().is_ok() { "yes" } else { "no" });
    if tensors {
        for param in table.iter() {
            print_line(&format!("  {:<28} {:?}", param.name, param.shape));
        }
    }
}

fn row(name: &str, value: &str) {
    print_line(&format!("{name:<13} {value}"));
}
