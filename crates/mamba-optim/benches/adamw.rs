//! Bytes a second of the fused update and of the gradient norm, on 1 M and 16 M parameters, each beside a ceiling: a
//! loop of the same shape that moves the same bytes and computes next to nothing. Judge a figure by its share of
//! the ceiling in the same run; both fall when something else uses the memory.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mamba_optim::{
    AdamWArenas, AdamWConfig, AdamWState, LossScaler, OptimError, ParamGroups, Schedule, StepOptions,
    StepScalars, adamw_update, global_norm,
};
use rayon::prelude::*;

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

fn ceilings(c: &mut Criterion) {
    const CHUNK: usize = 1 << 14;
    let mut group = c.benchmark_group("ceiling_update");
    for len in SIZES {
        let (mut p, g, mut m, mut v) = (wave(len), wave(len), vec![0.0f32; len], vec![0.0f32; len]);
        group.throughput(Throughput::Bytes(len as u64 * UPDATE_BYTES));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                let moments = m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK));
                p.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK)).zip(moments).for_each(|((p, g), (m, v))| {
                    for ((p, g), (m, v)) in p.iter_mut().zip(g).zip(m.iter_mut().zip(v.iter_mut())) {
                        *m = 0.5 * *m + g;
                        *v = 0.5 * *v + g;
                        *p = 0.5 * *p + g;
                    }
                });
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("ceiling_norm");
    for len in SIZES {
        let g = wave(len);
        group.throughput(Throughput::Bytes(len as u64 * NORM_BYTES));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            let or = |chunk: &[f32]| chunk.iter().fold(0, |a, g| a | g.to_bits());
            b.iter(|| black_box(&g).par_chunks(CHUNK).map(or).reduce(|| 0, |a, b| a | b));
        });
    }
    group.finish();
}

fn all(c: &mut Criterion) {
    if let Err(error) = update(c) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    norm(c);
    ceilings(c);
}

criterion_group!(benches, all);
criterion_main!(benches);
