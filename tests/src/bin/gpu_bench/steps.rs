//! Whole training steps: eager and replayed, with the device time of each kernel in an eager one.

use crate::report::Report;
use mamba_cuda::Gpu;
use mamba_kernels::Kernels;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_trainer::{
    Device, LmTrainer, MambaTrainer, ModelKind, TokenBatch, TrainSessionCfg, Trainer, WeightDtype,
};
use std::error::Error;
use std::time::Instant;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub const VOCAB: usize = 50_280;
/// Kernels shown of a step.
const SHOWN: usize = 24;

/// (name, d_model, layers, batch, seq_len, dtype, language model, recompute, floor in ms where it was derived).
type Work = (&'static str, usize, usize, usize, usize, WeightDtype, bool, bool, Option<f64>);

const WORKS: &[Work] = &[
    ("step/lm_130m/bf16", 768, 24, 8, 2048, WeightDtype::Bf16, true, false, Some(28.0)),
    ("step/lm_130m/f16", 768, 24, 8, 2048, WeightDtype::F16, true, false, Some(28.0)),
    ("step/lm_130m/bf16_recompute", 768, 24, 8, 2048, WeightDtype::Bf16, true, true, None),
    ("step/lm_370m/bf16", 1024, 48, 8, 2048, WeightDtype::Bf16, true, false, Some(76.0)),
    ("step/lm_1.4b/bf16", 2048, 48, 4, 2048, WeightDtype::Bf16, true, false, Some(120.0)),
    ("step/768x24_b8_t2048/bf16", 768, 24, 8, 2048, WeightDtype::Bf16, false, false, Some(21.8)),
    ("step/768x24_b8_t512/bf16", 768, 24, 8, 512, WeightDtype::Bf16, false, false, Some(5.9)),
    ("step/1536x8_b4_t1024/bf16", 1536, 8, 4, 1024, WeightDtype::Bf16, false, false, Some(6.1)),
    ("step/384x24_b8_t1300/bf16", 384, 24, 8, 1300, WeightDtype::Bf16, false, false, Some(5.2)),
    ("step/256x4_b32_t128/bf16", 256, 4, 32, 128, WeightDtype::Bf16, false, false, Some(0.21)),
    ("step/128x3_b16_t64/bf16", 128, 3, 16, 64, WeightDtype::Bf16, false, false, None),
    ("step/768x24_b8_t2048/tf32", 768, 24, 8, 2048, WeightDtype::Tf32, false, false, None),
    ("step/768x24_b8_t2048/f32", 768, 24, 8, 2048, WeightDtype::F32, false, false, None),
];

/// Measures every step whose name contains one of `filters`.
pub fn run(gpu: &Gpu, filters: &[String]) -> Result<Report> {
    let kernels = Kernels::new(gpu);
    println!("{}", gpu.info().name);
    let mut report = Report::default();
    for work in WORKS.iter().filter(|w| filters.iter().any(|f| w.0.contains(f.as_str()))) {
        let floor = work.8.map(|ms| ms * 1e3);
        report.add(work.0, measure(&kernels, work)? * 1e3, floor);
    }
    Ok(report)
}

/// Milliseconds of a replayed step.
fn measure(kernels: &Kernels, work: &Work) -> Result<f64> {
    let &(name, d_model, layers, batch, seq_len, dtype, lm, recompute, _) = work;
    let tokens = batch * seq_len;
    let backbone = MambaConfig::new(d_model, layers);
    let before = kernels.gpu().memory()?.0;
    let mut rng = SplitMix64::new(5, name);
    if lm {
        let config = ModelConfig::language_model(backbone, LmHeadConfig::new(VOCAB));
        let builder = LmTrainer::builder(MambaWeights::init(&config, 1)?, batch, seq_len);
        let mut trainer = builder.device(Device::Cuda(0)).dtype(dtype).recompute(recompute).build()?;
        let ids: Vec<u32> = (0..=tokens).map(|_| (rng.next_u64() % VOCAB as u64) as u32).collect();
        let targets: Vec<i32> = ids[1..].iter().map(|&t| t as i32).collect();
        let batch = TokenBatch::new(&ids[..tokens], &targets);
        time(kernels, (name, tokens, before), &mut trainer, |t| {
            t.step(&batch)?;
            Ok(())
        })
    } else {
        let weights = MambaWeights::init(&ModelConfig::backbone(backbone), 1)?;
        let session = TrainSessionCfg::new(d_model, batch, seq_len);
        let builder = MambaTrainer::builder(weights, session).device(Device::Cuda(0));
        let mut trainer = builder.dtype(dtype).recompute(recompute).build()?;
        let mut draws =
            |n: usize, size: f64| (0..n).map(|_| (rng.normal() * size) as f32).collect::<Vec<_>>();
        let (input, upstream) = (draws(tokens * d_model, 1.0), draws(tokens * d_model, 1e-3));
        time(kernels, (name, tokens, before), &mut trainer, |t| {
            t.step(&input, &upstream)?;
            Ok(())
        })
    }
}

/// Median over three rounds of a round's mean step, with everything that a caller waits for.
fn rounds<K: ModelKind>(
    trainer: &mut Trainer<K>,
    steps: usize,
    step: &mut impl FnMut(&mut Trainer<K>) -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..3 {
        trainer.last_outcome()?;
        let start = Instant::now();
        (0..steps).try_for_each(|_| step(trainer))?;
        trainer.last_outcome()?;
        times.push(start.elapsed().as_secs_f64() * 1e3 / steps as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[1])
}

fn time<K: ModelKind>(
    kernels: &Kernels,
    (name, tokens, before): (&str, usize, usize),
    trainer: &mut Trainer<K>,
    mut step: impl FnMut(&mut Trainer<K>) -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    step(trainer)?;
    trainer.last_outcome()?;
    let first = start.elapsed().as_secs_f64();
    let memory = (before - kernels.gpu().memory()?.0) as f64 / (1u64 << 30) as f64;
    step(trainer)?;
    kernels.start_timing();
    step(trainer)?;
    trainer.last_outcome()?;
    let times = kernels.stop_timing()?;
    let eager = rounds(trainer, 5, &mut step)?;
    trainer.capture_graph()?;
    step(trainer)?;
    let replayed = rounds(trainer, 10, &mut step)?;
    let device: f64 = times.iter().map(|t| t.microseconds).sum::<f64>() / 1e3;
    let rate = tokens as f64 / replayed;
    println!(
        "{name}: replayed {replayed:.3} ms ({rate:.0} k tokens/s), eager {eager:.3} ms, kernels {device:.3} ms, first step \
         {first:.2} s, {memory:.2} GiB"
    );
    for time in times.iter().take(SHOWN) {
        let mean = time.microseconds / time.count as f64;
        println!("    {:>10.1} µs = {:>4} × {mean:>9.1}  {}", time.microseconds, time.count, time.name);
    }
    Ok(replayed)
}
