//! The golden data of other implementations.

use super::DTYPES;
use crate::support::Test;
use mamba_model::files::load_pretrained;
use mamba_optim::ScalerConfig;
use mamba_tests::golden::Case;
use mamba_tests::golden_lm::{self, FOLDERS, batch, folder};
use mamba_tests::golden_model::{CASES, Outcome, weights_of, window};
use mamba_tests::tolerance::{Checks, Route};
use mamba_trainer::{
    BackwardOpts, Device, LmTrainer, MambaTrainer, TokenBatch, TrainSessionCfg, WeightDtype,
};

/// (name, test) of the golden data.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, route) in DTYPES {
        for recompute in [false, true] {
            let name = if recompute { "recomputed" } else { "kept" };
            let run = move |_: &_| backbones(dtype, route, recompute);
            all.push((format!("golden/{dtype}/backbones/{name}"), Box::new(run)));
        }
        all.push((format!("golden/{dtype}/lm"), Box::new(move |_| language_models(dtype, route))));
    }
    all
}

/// A scale that the gradients at hand do not overflow at.
pub fn scaler() -> ScalerConfig {
    ScalerConfig { init_scale: 64.0, ..ScalerConfig::default() }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// The arena without the loss scale.
pub fn unscaled(arena: &[f32], scale: f32) -> Vec<f32> {
    arena.iter().map(|g| g / scale).collect()
}

fn backbones(dtype: WeightDtype, route: Route, recompute: bool) -> Result<(), String> {
    let mut checks = Checks::new(route);
    for name in CASES {
        let case = Case::read(&format!("backbone/{name}"));
        let (weights, sizes) = weights_of(&case);
        let table = weights.table().clone();
        let session = TrainSessionCfg::new(sizes.input_dim, sizes.batch, sizes.seq_len);
        let builder = MambaTrainer::builder(weights, session).device(Device::Cuda(0)).dtype(dtype);
        let builder = builder.input_gradient(true).recompute(recompute).scaler(scaler());
        let mut trainer = builder.build().map_err(text)?;
        let state =
            mamba_model::RecurrentState { conv: case.f32("state0/conv"), ssm: case.f32("state0/ssm") };
        trainer.load_recurrent_state(&state).map_err(text)?;
        let (inputs, upstream) = (case.f32("windows/input"), case.f32("windows/d_temporal"));
        for index in 0..3 {
            let (input, d) = window((&inputs, &upstream), &sizes, index);
            let mut temporal = vec![0.0; sizes.temporal_len()];
            trainer.forward(input, &mut temporal).map_err(text)?;
            let opts = BackwardOpts::new().with_accumulate_only(true);
            let scale = trainer.backward_step(d, opts).map_err(text)?.loss_scale;
            let state = trainer.recurrent_state().map_err(text)?;
            let d_input = trainer.input_gradient().map_err(text)?.into_owned();
            let grads = unscaled(&trainer.grad_arena().map_err(text)?, scale);
            trainer.discard_window().map_err(text)?;
            let outcome = Outcome {
                temporal: &temporal,
                conv: &state.conv,
                ssm: &state.ssm,
                d_input: &d_input,
                grads: &grads,
            };
            outcome.check(&mut checks, "tbptt", &case, &table, index);
        }
    }
    checks.finish();
    Ok(())
}

/// Loss and gradients; the trainer has no call for logits.
fn language_models(dtype: WeightDtype, route: Route) -> Result<(), String> {
    let mut checks = Checks::new(route);
    for name in FOLDERS {
        let b = batch(name);
        let weights = load_pretrained(&folder(name)).map_err(text)?;
        let builder = LmTrainer::builder(weights.clone(), b.batch, b.ids.len() / b.batch);
        let builder = builder.device(Device::Cuda(0)).dtype(dtype).scaler(scaler());
        let mut trainer = builder.build().map_err(text)?;
        let tokens = TokenBatch::new(&b.ids, &b.targets);
        let loss = trainer.evaluate(&tokens).map_err(text)?.mean();
        let counted = trainer.accumulate(&tokens).map_err(text)?.tokens as f32;
        let scale = trainer.scaler_state().map_err(text)?.map_or(1.0, |s| s.scale);
        let grads = unscaled(&trainer.grad_arena().map_err(text)?, scale * counted);
        golden_lm::check_training(&mut checks, &b, &weights, loss, &grads);
    }
    checks.finish();
    Ok(())
}
