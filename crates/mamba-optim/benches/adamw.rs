//! Bytes a second of the fused update and of the gradient norm, on 1 M and 16 M parameters.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mamba_optim::{
    AdamWArenas, AdamWConfig, AdamWState, LossScaler, OptimError, ParamGroups, Schedule, StepOptions,
    StepScalars, adamw_update, global_norm,
};

const SIZES: [usize; 2] = [1 << 20, 1 << 24];
/// Read p, g, m, v; write p, m, v.
const UPDATE_BYTES: u64 = 28;
const NORM_BYTES: u64 = 4;

fn wave(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 - 0.5).collect()
}

fn update(c: &mut Criterion) -> Result<(), OptimError> {
    let mut group = c.benchmark_group("adamw_update");
    for len in SIZES {
        let groups = ParamGroups::uniform(len)?;
        let (config, schedule) = (AdamWConfig::default(), Schedule::constant());
        let scalars =
            StepScalars::new(&config, &schedule, 99, &LossScaler::disabled(), &StepOptions::default())?;
        let (mut params, grads, mut state) = (wave(len), wave(len), AdamWState::new(len));
        group.throughput(Throughput::Bytes(len as u64 * UPDATE_BYTES));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                let AdamWState { m, v, .. } = &mut state;
                let arenas = AdamWArenas { params: &mut params, grads: &grads, m, v };
                adamw_update(arenas, &groups, &scalars, black_box(0.5))
            });
        });
    }
    group.finish();
    Ok(())
}

fn norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("global_norm");
    for len in SIZES {
        let grads = wave(len);
        group.throughput(Throughput::Bytes(len as u64 * NORM_BYTES));
        group.bench_function(BenchmarkId::from_parameter(len), |b| b.iter(|| global_norm(black_box(&grads))));
    }
    group.finish();
}

fn all(c: &mut Criterion) {
    if let Err(error) = update(c) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    norm(c);
}

criterion_group!(benches, all);
criterion_main!(benches);
