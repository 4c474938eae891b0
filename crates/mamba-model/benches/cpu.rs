//! The CPU engine: its phases and a whole training step. `cargo bench -p mamba-model --bench cpu`
//!
//! Phases are timed inside whole steps, with the caches as a step leaves them.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mamba_model::cpu::{CpuDecoder, CpuModel, CpuOptions, Phase};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState, Result};
use std::time::Duration;

/// A byte-level language model and one window of data.
struct Step {
    name: &'static str,
    model: CpuModel,
    params: Vec<f32>,
    grads: Vec<f32>,
    state: RecurrentState,
    ids: Vec<u32>,
    targets: Vec<i32>,
}

impl Step {
    fn new(name: &'static str, backbone: MambaConfig, batch: usize, seq_len: usize) -> Result<Self> {
        let config = ModelConfig::language_model(backbone, LmHeadConfig::new(256));
        let params = MambaWeights::init(&config, 1)?.into_arena();
        let ids: Vec<u32> =
            (0..(batch * seq_len) as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24).collect();
        Ok(Self {
            name,
            model: CpuModel::new(&config, batch, seq_len, &CpuOptions::default())?,
            grads: vec![0.0; params.len()],
            params,
            state: RecurrentState::zeros(&config.backbone, batch),
            targets: ids.iter().map(|&i| (i as i32 + 1) % 256).collect(),
            ids,
        })
    }

    /// Refresh, forward, loss, backward.
    fn run(&mut self) -> Result<()> {
        self.state.reset();
        self.grads.fill(0.0);
        self.model.refresh(&self.params)?;
        self.model.forward(&self.params, ModelInput::Tokens(&self.ids), None, &mut self.state)?;
        let scale = 1.0 / self.ids.len() as f32;
        self.model.loss_backward(&self.params, &self.targets, None, scale, &mut self.grads)?;
        Ok(())
    }

    fn phase(&mut self, phase: Phase, steps: u64) -> Duration {
        self.model.take_phase_times();
        for _ in 0..steps {
            if let Err(error) = self.run() {
                eprintln!("{}: {error}", self.name);
            }
        }
        self.model.take_phase_times().get(phase)
    }
}

fn steps() -> Result<Vec<Step>> {
    Ok(vec![
        Step::new("d128_L4_B8_T256", MambaConfig::new(128, 4), 8, 256)?,
        Step::new("d256_L6_B4_T512", MambaConfig::new(256, 6), 4, 512)?,
    ])
}

fn training(c: &mut Criterion) {
    let Ok(mut steps) = steps() else { return };
    let phases = [
        (Phase::Scan, "scan"),
        (Phase::ScanBackward, "scan_backward"),
        (Phase::Conv, "conv_x_proj_dt_proj"),
        (Phase::ConvBackward, "conv_x_proj_dt_proj_backward"),
        (Phase::Projections, "projections"),
        (Phase::ProjectionsBackward, "projections_backward"),
        (Phase::WeightGradients, "weight_gradients"),
    ];
    for (phase, name) in phases {
        let mut group = c.benchmark_group(name);
        group.sample_size(20);
        for step in &mut steps {
            group.throughput(Throughput::Elements(step.ids.len() as u64));
            let id = BenchmarkId::from_parameter(step.name);
            group.bench_function(id, |b| b.iter_custom(|n| step.phase(phase, n)));
        }
        group.finish();
    }
    let mut group = c.benchmark_group("step");
    group.sample_size(20);
    for step in &mut steps {
        group.throughput(Throughput::Elements(step.ids.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(step.name), |b| b.iter(|| step.run()));
    }
    group.finish();
}

fn decoding(c: &mut Criterion) {
    let config = ModelConfig::language_model(MambaConfig::new(256, 6), LmHeadConfig::new(256));
    let Ok(weights) = MambaWeights::init(&config, 1) else { return };
    let mut group = c.benchmark_group("decode");
    for batch in [1, 64] {
        let Ok(mut decoder) = CpuDecoder::new(&weights, batch, &CpuOptions::default()) else { return };
        let ids = vec![7u32; batch];
        group.throughput(Throughput::Elements(batch as u64));
        let id = BenchmarkId::from_parameter(format!("d256_L6_B{batch}"));
        group.bench_function(id, |b| b.iter(|| decoder.step(&ids).map(<[f32]>::len)));
    }
    group.finish();
}

criterion_group!(benches, training, decoding);
criterion_main!(benches);
