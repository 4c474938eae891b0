//! Fits a small sequence regression: a decaying sum of the input so far, which needs a memory.
//!
//! `cargo run --release -p mamba-trainer --example train_backbone`

use mamba_trainer::{
    BackwardOpts, MambaConfig, MambaTrainer, MambaWeights, ModelConfig, Result, TrainSessionCfg,
};

const BATCH: usize = 8;
const SEQ_LEN: usize = 32;
const D_MODEL: usize = 24;

/// Noise in [-1, 1) and, as the target, its leaky sum `s ← 0.8·s + x`.
fn window(step: u64) -> (Vec<f32>, Vec<f32>) {
    let mut rng = mamba_model::rng::SplitMix64::new(step, "train_backbone");
    let input: Vec<f32> = (0..BATCH * SEQ_LEN).map(|_| rng.symmetric(1.0) as f32).collect();
    let mut target = Vec::with_capacity(input.len());
    for row in input.chunks(SEQ_LEN) {
        let mut sum = 0.0;
        for x in row {
            sum = 0.8 * sum + x;
            target.push(sum);
        }
    }
    (input, target)
}

fn main() -> Result<()> {
    let config = ModelConfig::backbone(MambaConfig::new(D_MODEL, 2).with_input_dim(1));
    let weights = MambaWeights::init(&config, 1)?;
    let session = TrainSessionCfg::new(1, BATCH, SEQ_LEN).with_lr(3e-3);
    let mut trainer = MambaTrainer::builder(weights, session).build()?;
    let mut temporal = vec![0.0; BATCH * SEQ_LEN * D_MODEL];
    let mut d_temporal = vec![0.0; temporal.len()];
    for step in 0..400 {
        let (input, target) = window(step);
        // Windows are independent here; without the reset the state would be carried from window to window.
        trainer.reset_state()?;
        trainer.forward(&input, &mut temporal)?;
        // The first output channel is the prediction; loss = mean of squared errors.
        let mut loss = 0.0;
        d_temporal.fill(0.0);
        for (i, target) in target.iter().enumerate() {
            let error = temporal[i * D_MODEL] - target;
            loss += f64::from(error * error) / target_count();
            d_temporal[i * D_MODEL] = 2.0 * error / target_count() as f32;
        }
        let metrics = trainer.backward_step(&d_temporal, BackwardOpts::new().with_clip_max_norm(1.0))?;
        if step % 50 == 0 || step == 399 {
            println!(
                "step {:3}  loss {loss:.4}  gradient norm {:.3}",
                step,
                metrics.grad_norm.unwrap_or(f64::NAN)
            );
        }
    }
    Ok(())
}

fn target_count() -> f64 {
    (BATCH * SEQ_LEN) as f64
}
