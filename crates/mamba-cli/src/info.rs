//! `mamba info`: what a path holds.

use crate::args::InfoArgs;
use crate::error::Result;
use crate::report::{print_line, thousands};
use crate::run_folder::{self, RunConfig};
use crate::weights::{self, Source};
use mamba_model::MambaWeights;
use mamba_trainer::TrainingState;
use std::path::Path;

/// Runs the command.
pub fn run(args: &InfoArgs) -> Result<()> {
    let source = weights::detect(&args.path)?;
    row("kind", source.describe());
    let weights = match &source {
        Source::Run(root) => {
            training(&run_folder::read_config(root)?, root)?;
            weights::load(root)?
        }
        Source::State(path) => state(path)?,
        _ => weights::load(&args.path)?,
    };
    model(&weights, args.tensors);
    Ok(())
}

fn training(config: &RunConfig, root: &Path) -> Result<()> {
    let train = &config.train;
    row("data", &config.data.path.display().to_string());
    row("steps", &thousands(train.steps));
    row("batch", &format!("{} x {} tokens, {} a step", train.batch, train.seq_len, train.accumulate));
    row("dtype", &train.dtype.to_string());
    let metrics = root.join("metrics.jsonl");
    let records = if metrics.exists() { run_folder::read_records(&metrics)? } else { Vec::new() };
    if let Some(record) = records.iter().rev().find(|r| r.val_loss.is_some()) {
        let bits = record.val_bpb.map_or(String::new(), |b| format!(", {b:.4} bits per byte"));
        let loss = record.val_loss.unwrap_or(f64::NAN);
        row("validation", &format!("{loss:.4} at step {}{bits}", record.step));
    }
    Ok(())
}

fn state(path: &Path) -> Result<MambaWeights> {
    let state = TrainingState::read(path)?;
    row("step", &thousands(state.optimizer.step));
    row("window", &format!("{} x {} tokens", state.session.batch, state.session.seq_len));
    row("dtype", &state.dtype.to_string());
    row("rate", &format!("{:e}", state.adamw.lr()));
    if let Some(scaler) = &state.scaler {
        row("loss scaler", &format!("{scaler:?}"));
    }
    Ok(state.weights)
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
