//! One short run that launches every family of kernels: what the sanitizers watch.

use super::DTYPES;
use super::routes::{ensure, text, tokens};
use crate::support::Test;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_optim::ScalerConfig;
use mamba_tests::random::draws;
use mamba_trainer::{
    BackwardOpts, Decoder, Device, LmTrainer, MambaTrainer, StepOpts, TokenBatch, TrainSessionCfg,
    WeightDtype,
};

const BATCH: usize = 2;
const SEQ_LEN: usize = 35;
const VOCAB: usize = 61;

/// (name, test) of the short runs.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, _) in DTYPES {
        // Wide enough for the vector paths, and odd sizes for the scalar ones.
        for d_model in [64, 33] {
            let name = |what: &str| format!("smoke/{dtype}/{what}/{d_model}");
            all.push((name("backbone"), Box::new(move |_| backbone(dtype, d_model))));
            all.push((name("language_model"), Box::new(move |_| language_model(dtype, d_model))));
        }
    }
    all
}

fn scaler() -> ScalerConfig {
    ScalerConfig { init_scale: 256.0, ..ScalerConfig::default() }
}

/// Packed, clipped, split, accumulated and replayed steps with a projection of the input and its gradient.
fn backbone(dtype: WeightDtype, d_model: usize) -> Result<(), String> {
    let config = ModelConfig::backbone(MambaConfig::new(d_model, 2).with_input_dim(5));
    let weights = MambaWeights::init(&config, 3).map_err(text)?;
    let builder = MambaTrainer::builder(weights, TrainSessionCfg::new(5, BATCH, SEQ_LEN));
    let opts = StepOpts::new().with_clip_max_norm(0.5).with_control_clip_max_norm(0.1);
    let builder = builder.device(Device::Cuda(0)).dtype(dtype).scaler(scaler()).step_opts(opts);
    let mut trainer = builder.input_gradient(true).recompute(true).build().map_err(text)?;
    let mut rng = mamba_model::rng::SplitMix64::new(1, "smoke");
    let (input, upstream) =
        (draws(&mut rng, BATCH * SEQ_LEN * 5), draws(&mut rng, BATCH * SEQ_LEN * d_model));
    let mask: Vec<u8> = (0..BATCH * SEQ_LEN).map(|i| u8::from(i % 13 == 4)).collect();
    let mut temporal = vec![0.0; upstream.len()];
    trainer.step_packed(&input, Some(&mask), &upstream).map_err(text)?;
    trainer.forward(&input, &mut temporal).map_err(text)?;
    let accumulate = BackwardOpts::new().with_accumulate_only(true);
    trainer.backward_step(&upstream, accumulate).map_err(text)?;
    let applied = trainer.apply_step(Some(1.0)).map_err(text)?;
    trainer.capture_graph().map_err(text)?;
    trainer.step(&input, &upstream).map_err(text)?;
    let finite = trainer.input_gradient().map_err(text)?.iter().all(|x| x.is_finite());
    ensure(finite && applied.optimizer_stepped, || format!("finite: {finite}, {applied:?}"))?;
    ensure(trainer.last_outcome().map_err(text)?.is_some(), || "no outcome".to_owned())
}

/// Steps, an evaluation and a decoder of what was trained.
fn language_model(dtype: WeightDtype, d_model: usize) -> Result<(), String> {
    let config = ModelConfig::language_model(MambaConfig::new(d_model, 2), LmHeadConfig::new(VOCAB));
    let weights = MambaWeights::init(&config, 3).map_err(text)?;
    let builder = LmTrainer::builder(weights, BATCH, SEQ_LEN).device(Device::Cuda(0)).dtype(dtype);
    let mut trainer = builder.scaler(scaler()).build().map_err(text)?;
    let (inputs, targets) = tokens(1, BATCH * SEQ_LEN);
    let batch = TokenBatch::new(&inputs, &targets);
    trainer.step(&batch).map_err(text)?;
    trainer.capture_graph().map_err(text)?;
    trainer.step(&batch).map_err(text)?;
    let sums = trainer.evaluate(&batch).map_err(text)?;
    let uniform = (VOCAB as f64).ln() * sums.weight;
    ensure(sums.nll > 0.0 && sums.nll < 1.2 * uniform, || format!("{sums:?}"))?;
    let weights = trainer.weights().map_err(text)?;
    let mut decoder = Decoder::new(&weights, 2, Device::Cuda(0), dtype).map_err(text)?;
    decoder.prefill(&inputs[..8]).map_err(text)?;
    for ids in inputs[8..14].chunks_exact(2) {
        let logits = decoder.step(ids).map_err(text)?;
        ensure(logits.iter().all(|x| x.is_finite()), || "logits are not finite".to_owned())?;
    }
    Ok(())
}
