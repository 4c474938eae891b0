//! Tokens a second of whole training steps on the CPU, all cores: forward, backward, clip, AdamW.
//!
//! `cargo bench -p mamba-trainer --bench step`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mamba_model::rng::SplitMix64;
use mamba_trainer::{
    Device, LmHeadConfig, LmTrainer, MambaConfig, MambaTrainer, MambaWeights, ModelConfig, Result, StepOpts,
    TokenBatch, TrainSessionCfg,
};

/// d_model, layers, tokens a sequence, sequences.
const SHAPES: [(usize, usize, usize, usize); 2] = [(128, 4, 256, 8), (256, 6, 512, 4)];
const VOCAB: usize = 256;

fn opts() -> StepOpts {
    StepOpts::new().with_clip_max_norm(1.0)
}

fn language_model(c: &mut Criterion) -> Result<()> {
    let mut group = c.benchmark_group("lm_step");
    group.sample_size(10);
    for (d_model, layers, seq_len, batch) in SHAPES {
        let tokens = batch * seq_len;
        let config = ModelConfig::language_model(MambaConfig::new(d_model, layers), LmHeadConfig::new(VOCAB));
        let mut trainer = LmTrainer::builder(MambaWeights::init(&config, 1)?, batch, seq_len)
            .device(Device::Cpu)
            .step_opts(opts())
            .build()?;
        let mut rng = SplitMix64::new(1, "bench");
        let ids: Vec<u32> = (0..tokens).map(|_| (rng.next_u64() % VOCAB as u64) as u32).collect();
        let targets: Vec<i32> = ids.iter().rev().map(|&id| id as i32).collect();
        group.throughput(Throughput::Elements(tokens as u64));
        let id = BenchmarkId::from_parameter(format!("d{d_model}_L{layers}_T{seq_len}_B{batch}"));
        group.bench_function(id, |b| b.iter(|| trainer.step(&TokenBatch::new(&ids, &targets))));
    }
    group.finish();
    Ok(())
}

fn backbone(c: &mut Criterion) -> Result<()> {
    let mut group = c.benchmark_group("backbone_step");
    group.sample_size(10);
    for (d_model, layers, seq_len, batch) in SHAPES {
        let tokens = batch * seq_len;
        let weights = MambaWeights::init(&ModelConfig::backbone(MambaConfig::new(d_model, layers)), 1)?;
        let session = TrainSessionCfg::new(d_model, batch, seq_len);
        let mut trainer =
            MambaTrainer::builder(weights, session).device(Device::Cpu).step_opts(opts()).build()?;
        let mut rng = SplitMix64::new(1, "bench");
        let mut draw = || (0..tokens * d_model).map(|_| rng.normal() as f32).collect::<Vec<_>>();
        let (input, d_temporal) = (draw(), draw());
        group.throughput(Throughput::Elements(tokens as u64));
        let id = BenchmarkId::from_parameter(format!("d{d_model}_L{layers}_T{seq_len}_B{batch}"));
        group.bench_function(id, |b| b.iter(|| trainer.step(&input, &d_temporal)));
    }
    group.finish();
    Ok(())
}

fn benches(c: &mut Criterion) {
    for run in [language_model, backbone] {
        if let Err(error) = run(c) {
            eprintln!("{error}");
        }
    }
}

criterion_group!(step, benches);
criterion_main!(step);
