//! CPU and GPU, batch and row, host and replay: what must agree between them.

use super::DTYPES;
use crate::support::Test;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_optim::ScalerConfig;
use mamba_tests::contract::{Target, snapshot};
use mamba_tests::golden::relative_error;
use mamba_tests::random::draws;
use mamba_trainer::{Device, LmTrainer, MambaTrainer, TokenBatch, TrainSessionCfg, WeightDtype};

/// (name, test) of the routes.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, _) in DTYPES {
        all.push((
            format!("routes/{dtype}/twenty_steps_as_on_the_cpu"),
            Box::new(move |_| twenty_steps(dtype)),
        ));
        all.push((format!("routes/{dtype}/rows_do_not_see_the_batch"), Box::new(move |_| rows(dtype))));
        all.push((format!("routes/{dtype}/five_hundred_tiny_steps"), Box::new(move |_| tiny_steps(dtype))));
    }
    all.push(("routes/state_moves_between_devices".to_owned(), Box::new(|_| state_moves())));
    all.push(("routes/bf16/65536_tokens_in_one_sequence".to_owned(), Box::new(|_| long_sequence())));
    all.push(("routes/f16/overflow_in_replay".to_owned(), Box::new(|_| overflow_in_replay())));
    all
}

pub fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

pub fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

const VOCAB: usize = 61;

pub fn lm_weights() -> Result<MambaWeights, String> {
    let config = ModelConfig::language_model(MambaConfig::new(40, 3), LmHeadConfig::new(VOCAB));
    MambaWeights::init(&config, 5).map_err(text)
}

/// A pattern that can be learnt.
pub fn tokens(seed: u64, n: usize) -> (Vec<u32>, Vec<i32>) {
    let mut rng = SplitMix64::new(seed, "gpu routes");
    let mut id = 0;
    let ids: Vec<u32> = (0..=n)
        .map(|_| {
            id = (id * 3 + 1 + rng.next_u64() % 2) % VOCAB as u64;
            id as u32
        })
        .collect();
    (ids[..n].to_vec(), ids[1..].iter().map(|&t| t as i32).collect())
}

/// Loss after 20 steps and the weights' movement, relative to the CPU's. An H200 showed 3.7e-6, 9.9e-3, 2.7e-2, 1.3e-2 for
/// the movement and 1.9e-8, 2.3e-6, 1.5e-4, 4.0e-5 for the loss (f32, tf32, bf16, f16).
fn twenty_steps(dtype: WeightDtype) -> Result<(), String> {
    let start = lm_weights()?;
    let run = |device, dtype| -> Result<(f64, Vec<f32>), String> {
        let builder = LmTrainer::builder(start.clone(), 3, 33).device(device).dtype(dtype).lr(2e-3);
        let scaler = ScalerConfig { init_scale: 1024.0, ..ScalerConfig::default() };
        let mut trainer = builder.scaler(scaler).build().map_err(text)?;
        for step in 0..20 {
            let (inputs, targets) = tokens(step, 99);
            trainer.step(&TokenBatch::new(&inputs, &targets)).map_err(text)?;
        }
        let loss = trainer.last_metrics().map_err(text)?.map(|m| m.loss).ok_or("no loss")?;
        let moved = trainer.weights().map_err(text)?;
        let moved = moved.arena().iter().zip(start.arena()).map(|(a, b)| a - b).collect();
        Ok((loss, moved))
    };
    let (want_loss, want) = run(Device::Cpu, WeightDtype::F32)?;
    let (loss, moved) = run(Device::Cuda(0), dtype)?;
    let wide: Vec<f64> = want.iter().map(|&w| f64::from(w)).collect();
    let (off, loss_off) = (relative_error(&moved, &wide), (loss - want_loss).abs() / want_loss);
    println!("{dtype}: after 20 steps the movement is off by {off:.1e}, the loss by {loss_off:.1e}");
    let (bound, loss_bound) = match dtype {
        WeightDtype::F32 => (1.5e-5, 1e-7),
        WeightDtype::Tf32 => (3e-2, 1e-5),
        WeightDtype::Bf16 => (8e-2, 5e-4),
        WeightDtype::F16 => (4e-2, 2e-4),
    };
    ensure(off < bound && loss_off < loss_bound, || format!("movement {off:.1e}, loss {loss_off:.1e}"))
}

/// 500 updates, each far below half an ulp of a bf16 weight, arrive in full: the movement is that of f32, whose weights
/// would be the only ones to move if a half weight were updated in place.
fn tiny_steps(dtype: WeightDtype) -> Result<(), String> {
    let start = lm_weights()?;
    let run = |dtype| -> Result<Vec<f32>, String> {
        let builder = LmTrainer::builder(start.clone(), 3, 33).device(Device::Cuda(0)).dtype(dtype);
        let scaler = ScalerConfig { init_scale: 1024.0, ..ScalerConfig::default() };
        let mut trainer = builder.lr(1e-6).weight_decay(0.0).scaler(scaler).build().map_err(text)?;
        let (inputs, targets) = tokens(1, 99);
        for step in 0..500 {
            trainer.step(&TokenBatch::new(&inputs, &targets)).map_err(text)?;
            trainer.reset_state().map_err(text)?;
            if step == 0 {
                trainer.capture_graph().map_err(text)?;
            }
        }
        Ok(trainer.weights().map_err(text)?.arena().to_vec())
    };
    let (want, got) = (run(WeightDtype::F32)?, run(dtype)?);
    let wide: Vec<f64> = want.iter().map(|&w| f64::from(w)).collect();
    let (mut off, mut most, mut moved) = (0.0_f64, 0.0_f64, 0.0_f64);
    for ((a, b), s) in want.iter().zip(&got).zip(start.arena()) {
        off += (f64::from(*a) - f64::from(*s)).abs() - (f64::from(*b) - f64::from(*s)).abs();
        most = most.max((f64::from(*b) - f64::from(*s)).abs());
        moved += (f64::from(*a) - f64::from(*s)).abs();
    }
    let (weights_off, length_off) = (relative_error(&got, &wide), off.abs() / moved);
    println!(
        "{dtype}: after 500 tiny steps weights off {weights_off:.1e}, length of the way {length_off:.1e}"
    );
    // 500 steps of about the learning rate in one direction, since the batch does not change; an H200 showed 8.7e-4.
    ensure((4e-4..1.2e-3).contains(&most), || format!("the largest movement is {most:.2e}"))?;
    let bound = if dtype == WeightDtype::F32 { f64::MIN_POSITIVE } else { 1e-3 };
    ensure(weights_off < bound && length_off < 5e-2, || format!("{weights_off:.1e}, {length_off:.1e}"))
}

/// One sequence of 65,536 tokens trains, and its loss falls.
fn long_sequence() -> Result<(), String> {
    let config = ModelConfig::language_model(MambaConfig::new(64, 2), LmHeadConfig::new(VOCAB));
    let weights = MambaWeights::init(&config, 5).map_err(text)?;
    let builder = LmTrainer::builder(weights, 1, 65_536).device(Device::Cuda(0)).dtype(WeightDtype::Bf16);
    let mut trainer = builder.lr(5e-3).build().map_err(text)?;
    let (inputs, targets) = tokens(1, 65_536);
    let mut losses = Vec::new();
    for step in 0..12 {
        trainer.step(&TokenBatch::new(&inputs, &targets)).map_err(text)?;
        losses.push(trainer.last_metrics().map_err(text)?.map(|m| m.loss).ok_or("no loss")?);
        if step == 0 {
            trainer.capture_graph().map_err(text)?;
        }
    }
    println!("65,536 tokens: loss {:.3} → {:.3}", losses[0], losses[11]);
    ensure(losses[11] < 0.7 * losses[0], || format!("the loss does not fall: {losses:?}"))
}

/// The forward result of a row has the same bits whatever else is in the batch.
fn rows(dtype: WeightDtype) -> Result<(), String> {
    let (seq_len, d_model, input_dim) = (70, 48, 5);
    let config = ModelConfig::backbone(MambaConfig::new(d_model, 2).with_input_dim(input_dim));
    let weights = MambaWeights::init(&config, 9).map_err(text)?;
    let row = draws(&mut SplitMix64::new(8, "row"), seq_len * input_dim);
    let forward = |batch: usize, place: usize| -> Result<Vec<f32>, String> {
        let session = TrainSessionCfg::new(input_dim, batch, seq_len);
        let builder = MambaTrainer::builder(weights.clone(), session).device(Device::Cuda(0)).dtype(dtype);
        let mut trainer = builder.build().map_err(text)?;
        let mut input = draws(&mut SplitMix64::new(batch as u64, "others"), batch * row.len());
        input[place * row.len()..][..row.len()].copy_from_slice(&row);
        let mut temporal = vec![0.0; batch * seq_len * d_model];
        trainer.forward(&input, &mut temporal).map_err(text)?;
        Ok(temporal[place * seq_len * d_model..][..seq_len * d_model].to_vec())
    };
    let alone = forward(1, 0)?;
    for (batch, place) in [(2, 1), (3, 0), (64, 37)] {
        let got = forward(batch, place)?;
        let same = got.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure(same, || format!("row {place} of {batch} differs from the row alone"))?;
    }
    Ok(())
}

/// A state goes CPU → GPU → CPU and comes back with the same bits.
fn state_moves() -> Result<(), String> {
    let build = |device| LmTrainer::builder(lm_weights()?, 2, 17).device(device).build().map_err(text);
    let (inputs, targets) = tokens(1, 34);
    let batch = TokenBatch::new(&inputs, &targets);
    let mut cpu = build(Device::Cpu)?;
    for _ in 0..3 {
        cpu.step(&batch).map_err(text)?;
    }
    let state = cpu.training_state(b"here").map_err(text)?;
    let mut gpu = build(Device::Cuda(0))?;
    gpu.load_training_state(&state).map_err(text)?;
    let mut back = build(Device::Cpu)?;
    back.load_training_state(&gpu.training_state(b"here").map_err(text)?).map_err(text)?;
    let (a, b) = (snapshot(&mut cpu), snapshot(&mut back));
    let kept = ["weights", "m", "v", "conv", "ssm"];
    for ((name, x), (_, y)) in a.parts.iter().zip(&b.parts).filter(|((n, _), _)| kept.contains(n)) {
        ensure(x == y, || format!("{name} changed on the way"))?;
    }
    gpu.step(&batch).map_err(text)?;
    cpu.step(&batch).map_err(text)?;
    let loss =
        |t: &mut LmTrainer| t.last_metrics().map_err(text)?.map(|m| m.loss).ok_or("no loss".to_owned());
    let (got, want) = (loss(&mut gpu)?, loss(&mut cpu)?);
    ensure((got - want).abs() < 1e-5 * want, || format!("the next loss is {got}, on the CPU {want}"))
}

/// Infinities in the upstream gradient, in a replayed f16 step: nothing moves but the scale, which halves once; the next
/// clean step is that of an eager trainer.
fn overflow_in_replay() -> Result<(), String> {
    use mamba_tests::contract::{Batch, assert_same_but};
    let target = Target {
        device: Device::Cuda(0),
        dtype: WeightDtype::F16,
        mode: mamba_trainer::GemmMode::Deterministic,
    };
    let scaler = ScalerConfig { init_scale: 1024.0, ..ScalerConfig::default() };
    let build = || target.backbone_builder().scaler(scaler).build().map_err(text);
    let (mut eager, mut graph) = (build()?, build()?);
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for (i, batch) in [Batch::new(1), Batch::poisoned(2, bad), Batch::new(3)].iter().enumerate() {
            let before = snapshot(&mut graph);
            eager.step(&batch.input, &batch.d_temporal).map_err(text)?;
            graph.step(&batch.input, &batch.d_temporal).map_err(text)?;
            let after = snapshot(&mut graph);
            assert_same_but(&snapshot(&mut eager), &after, &["graph"], &format!("{bad}, step {i}"));
            if i == 1 {
                let kept = ["weights", "m", "v"];
                for ((name, x), (_, y)) in before.parts.iter().zip(&after.parts) {
                    ensure(!kept.contains(name) || x == y, || format!("{name} moved at {bad}"))?;
                }
                let verdict = graph.last_outcome().map_err(text)?.map(|o| o.verdict);
                ensure(verdict == Some(mamba_trainer::Verdict::OverflowSkipped), || format!("{verdict:?}"))?;
            }
            if !graph.has_graph() {
                graph.capture_graph().map_err(text)?;
            }
        }
    }
    let scale = graph.scaler_state().map_err(text)?.map(|s| s.scale);
    ensure(scale == Some(128.0), || format!("three overflows from 1024 leave {scale:?}"))
}
