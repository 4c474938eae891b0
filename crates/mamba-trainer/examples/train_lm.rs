//! Trains a byte-level language model on a text of its own, with accumulation, clipping and a learning-rate schedule.
//!
//! `cargo run --release -p mamba-trainer --example train_lm`

use mamba_optim::{Schedule, ScheduleKind};
use mamba_trainer::{
    LmHeadConfig, LmTrainer, MambaConfig, MambaWeights, ModelConfig, Result, StepOpts, TokenBatch,
};

const BATCH: usize = 4;
const SEQ_LEN: usize = 64;
const STEPS: u64 = 120;
const LR: f64 = 3e-3;
const TEXT: &[u8] = include_bytes!("train_lm.rs");

/// `[BATCH, SEQ_LEN]` bytes from places that depend on the step, each with its successor as the target.
fn tokens(step: u64, micro_batch: u64) -> (Vec<u32>, Vec<i32>) {
    let mut rng = mamba_model::rng::SplitMix64::new(2 * step + micro_batch, "train_lm");
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let start = (rng.next_u64() % (TEXT.len() - SEQ_LEN - 1) as u64) as usize;
        let window = &TEXT[start..=start + SEQ_LEN];
        inputs.extend(window[..SEQ_LEN].iter().map(|&b| u32::from(b)));
        targets.extend(window[1..].iter().map(|&b| i32::from(b)));
    }
    (inputs, targets)
}

fn main() -> Result<()> {
    let config = ModelConfig::language_model(MambaConfig::new(48, 2), LmHeadConfig::new(256));
    let weights = MambaWeights::init(&config, 1)?;
    let mut trainer = LmTrainer::builder(weights, BATCH, SEQ_LEN)
        .lr(LR)
        .weight_decay(0.1)
        .betas(0.9, 0.95)
        .step_opts(StepOpts::new().with_clip_max_norm(1.0))
        .build()?;
    let schedule = Schedule::new(ScheduleKind::Cosine { warmup: 10, total: STEPS, min_factor: 0.1 })?;
    for step in 0..STEPS {
        trainer.set_lr(LR * schedule.factor(step))?;
        for micro_batch in 0..2 {
            let (inputs, targets) = tokens(step, micro_batch);
            trainer.reset_state()?;
            trainer.accumulate(&TokenBatch::new(&inputs, &targets))?;
        }
        let metrics = trainer.apply_window()?;
        if step % 20 == 0 || step + 1 == STEPS {
            let bits = metrics.loss / std::f64::consts::LN_2;
            println!("step {step:3}  {bits:.3} bits per byte over {} tokens", metrics.tokens);
        }
    }
    Ok(())
}
