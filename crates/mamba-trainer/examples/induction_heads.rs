//! Induction heads (Gu, Dao, "Mamba", 2023, section 4.1.2): recall what followed the special token before.
//!
//! `cargo run --release -p mamba-trainer --example induction_heads -- [steps]`
//!
//! Reaches 100 % at the trained length, at twice and at four times it, in 20 s on two CPU cores (measured); ends with a
//! failure below 95 %.

use mamba_data::LmBatch;
use mamba_data::tasks::InductionHeads;
use mamba_model::ModelInput;
use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_optim::{Schedule, ScheduleKind};
use mamba_trainer::{
    LmHeadConfig, LmTrainer, MambaConfig, MambaWeights, ModelConfig, RecurrentState, StepOpts, TokenBatch,
};
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error>;

const VOCAB: usize = 16;
const BATCH: usize = 32;
const LR: f64 = 4e-3;
const STEPS: u64 = 1500;
const WANTED: f64 = 0.95;
const TRAIN_SEED: u64 = 1;
/// Held-out batches come from another seed.
const TEST_SEED: u64 = 2;
/// Trained at this length only.
const TASK: InductionHeads = InductionHeads { vocab_size: VOCAB, length: 64 };

/// Share of counted targets that the largest logit gets right, over a few held-out batches.
fn accuracy(weights: &MambaWeights, batches: &[LmBatch], seq_len: usize) -> Result<f64, Failure> {
    let mut model = CpuModel::new(weights.config(), BATCH, seq_len, &CpuOptions::default())?;
    model.refresh(weights.arena())?;
    let (mut right, mut counted) = (0usize, 0usize);
    for batch in batches {
        let mut state = RecurrentState::zeros(&weights.config().backbone, BATCH);
        model.forward(weights.arena(), ModelInput::Tokens(&batch.inputs), None, &mut state)?;
        let mut logits = vec![0.0; batch.inputs.len() * VOCAB];
        model.logits(weights.arena(), &mut logits)?;
        for (row, &target) in logits.chunks(VOCAB).zip(&batch.targets).filter(|(_, t)| **t >= 0) {
            let best = (0..VOCAB).max_by(|&i, &j| row[i].total_cmp(&row[j]));
            right += usize::from(best == Some(target as usize));
            counted += 1;
        }
    }
    Ok(right as f64 / counted as f64)
}

fn main() -> Result<ExitCode, Failure> {
    let steps = std::env::args().nth(1).map_or(Ok(STEPS), |s| s.parse())?;
    let head = LmHeadConfig { tied: false, ..LmHeadConfig::new(VOCAB) };
    let config = ModelConfig::language_model(MambaConfig::new(64, 2), head);
    let seq_len = TASK.length;
    let mut trainer = LmTrainer::builder(MambaWeights::init(&config, 1)?, BATCH, seq_len)
        .lr(LR)
        .weight_decay(0.0)
        .betas(0.9, 0.95)
        .step_opts(StepOpts::new().with_clip_max_norm(1.0))
        .build()?;
    let warmup = (steps / 20).min(100);
    let schedule = Schedule::new(ScheduleKind::Cosine { warmup, total: steps, min_factor: 0.05 })?;
    for step in 0..steps {
        let batch = TASK.batch(BATCH, TRAIN_SEED, step)?;
        trainer.set_lr(LR * schedule.factor(step))?;
        trainer.reset_state()?;
        let metrics = trainer.step(&TokenBatch::new(&batch.inputs, &batch.targets))?;
        if step % 100 == 0 || step + 1 == steps {
            println!("step {step:4}  loss {:.4}", metrics.loss);
        }
    }
    let weights = trainer.weights()?;
    let mut all = true;
    for times in [1, 2, 4] {
        let task = InductionHeads { length: times * TASK.length, ..TASK };
        let held_out = (0..16).map(|i| task.batch(BATCH, TEST_SEED, i)).collect::<Result<Vec<_>, _>>()?;
        let share = accuracy(&weights, &held_out, task.length)?;
        println!("length {:3}: {:.2} % right; {:.0} % wanted", task.length, 100.0 * share, 100.0 * WANTED);
        all &= share >= WANTED;
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
