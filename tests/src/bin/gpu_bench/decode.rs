//! Decoding with a 130 M model: a token for every sequence, with the logits on the host at its end.

use crate::report::Report;
use crate::steps::{Result, VOCAB};
use mamba_cuda::Gpu;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_trainer::{Decoder, Device, WeightDtype};
use std::time::Instant;

/// Bytes a microsecond that a copy reaches on an H200.
const BANDWIDTH: f64 = 4.27e6;
/// Tokens of a round.
const TOKENS: usize = 100;

/// (name, batch, dtype).
const WORKS: &[(&str, usize, WeightDtype)] = &[
    ("decode/130m_b1/bf16", 1, WeightDtype::Bf16),
    ("decode/130m_b64/bf16", 64, WeightDtype::Bf16),
    ("decode/130m_b1/f32", 1, WeightDtype::F32),
];

/// Measures every decoder whose name contains one of `filters`.
pub fn run(gpu: &Gpu, filters: &[String]) -> Result<Report> {
    let mut report = Report::default();
    println!("{}", gpu.info().name);
    let config = ModelConfig::language_model(MambaConfig::new(768, 24), LmHeadConfig::new(VOCAB));
    let weights = MambaWeights::init(&config, 1)?;
    for &(name, batch, dtype) in WORKS.iter().filter(|w| filters.iter().any(|f| w.0.contains(f.as_str()))) {
        let mut decoder = Decoder::new(&weights, batch, Device::Cuda(0), dtype)?;
        let prompt: Vec<u32> = (0..batch * 512).map(|i| (i * 7919 % VOCAB) as u32).collect();
        let (_, prefill) = timed(|| decoder.prefill(&prompt).map(drop))?;
        let (_, prefill_again) = timed(|| decoder.prefill(&prompt).map(drop))?;
        let mut times = Vec::new();
        for _ in 0..4 {
            let mut step = |i: usize| {
                let ids: Vec<u32> = (0..batch).map(|row| ((row * 31 + i * 977) % VOCAB) as u32).collect();
                decoder.step(&ids).map(drop)
            };
            times.push(timed(|| (0..TOKENS).try_for_each(&mut step))?.1 / TOKENS as f64);
        }
        times[1..].sort_by(f64::total_cmp);
        println!(
            "{name}: {:.1} µs a token, 512 tokens of prompt in {:.2} ms (first time {:.0} ms)",
            times[2],
            prefill_again / 1e3,
            prefill / 1e3
        );
        // The weights are read once.
        let bytes = weights.arena().len() * if dtype == WeightDtype::F32 { 4 } else { 2 };
        report.add(name, times[2], Some(bytes as f64 / BANDWIDTH));
    }
    Ok(report)
}

/// Result and microseconds.
fn timed<T>(work: impl FnOnce() -> mamba_trainer::Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed().as_secs_f64() * 1e6))
}
