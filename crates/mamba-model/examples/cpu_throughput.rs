//! Training speed of two byte-level language models on this machine, with the time of every phase and the share of
//! the floor that the machine's own matrix-product and exponential rates give.
//!
//! `cargo run --release -p mamba-model --example cpu_throughput`

use mamba_model::cpu::{Ceilings, CpuModel, CpuOptions, PHASES, PhaseTimes};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};
use mamba_optim::{AdamWConfig, Optimizer, ParamGroups, ParamSpan};
use std::error::Error;
use std::time::{Duration, Instant};

struct Work {
    d_model: usize,
    n_layers: usize,
    seq_len: usize,
    batch: usize,
    steps: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let recompute = args.iter().any(|a| a == "--recompute");
    let threads = args.iter().find_map(|a| a.parse().ok());
    let options = CpuOptions { threads, recompute };
    let ceilings = Ceilings::measure(&options)?;
    println!("ceilings: {:.0} GFLOP/s, {:.1} G exp/s", ceilings.gemm_flops * 1e-9, ceilings.exps * 1e-9);
    for work in [
        Work { d_model: 128, n_layers: 4, seq_len: 256, batch: 8, steps: 40 },
        Work { d_model: 256, n_layers: 6, seq_len: 512, batch: 4, steps: 15 },
    ] {
        measure(&work, &options, &ceilings)?;
    }
    Ok(())
}

fn measure(work: &Work, options: &CpuOptions, ceilings: &Ceilings) -> Result<(), Box<dyn Error>> {
    let backbone = MambaConfig::new(work.d_model, work.n_layers);
    let config = ModelConfig::language_model(backbone, LmHeadConfig::new(256));
    let weights = MambaWeights::init(&config, 1)?;
    let span = |p: &mamba_model::params::Param| ParamSpan::new(p.name.clone(), p.span.range(), p.decay);
    let spans = weights.table().iter().map(span).collect();
    let groups = ParamGroups::new(weights.table().arena_len(), spans)?;
    let mut optimizer = Optimizer::new(AdamWConfig::default(), groups);
    let mut params = weights.into_arena();
    let mut grads = vec![0.0f32; params.len()];

    let tokens = work.batch * work.seq_len;
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24).collect();
    let targets: Vec<i32> = ids.iter().map(|&i| (i as i32 + 1) % 256).collect();
    let mut model = CpuModel::new(&config, work.batch, work.seq_len, options)?;
    let mut state = RecurrentState::zeros(&config.backbone, work.batch);
    model.refresh(&params)?;

    let mut best: Option<(Duration, Duration, PhaseTimes)> = None;
    let mut times = Vec::new();
    for _ in 0..work.steps {
        model.take_phase_times();
        let start = Instant::now();
        state.reset();
        grads.fill(0.0);
        model.forward(&params, ModelInput::Tokens(&ids), None, &mut state)?;
        model.loss_backward(&params, &targets, None, 1.0 / tokens as f32, &mut grads)?;
        let tail = Instant::now();
        optimizer.step(&mut params, &mut grads)?;
        let optim = tail.elapsed();
        model.refresh(&params)?;
        let step = start.elapsed();
        times.push(step);
        if best.as_ref().is_none_or(|b| step < b.0) {
            best = Some((step, optim, model.take_phase_times()));
        }
    }
    times.sort();
    let Some((step, optim, phases)) = best else { return Ok(()) };
    let rate = |t: Duration| tokens as f64 / t.as_secs_f64();
    let floor = ceilings.step_floor(&config, tokens);
    println!(
        "\nd {}, L {}, T {}, B {}: best {:.2} ms, median {:.2} ms; {:.0} and {:.0} tokens/s; floor {:.2} ms, share {:.0} % \
         and {:.0} %; {:.1} MiB",
        work.d_model,
        work.n_layers,
        work.seq_len,
        work.batch,
        step.as_secs_f64() * 1e3,
        times[times.len() / 2].as_secs_f64() * 1e3,
        rate(step),
        rate(times[times.len() / 2]),
        floor * 1e3,
        100.0 * floor / step.as_secs_f64(),
        100.0 * floor / times[times.len() / 2].as_secs_f64(),
        model.memory_bytes() as f64 / f64::from(1 << 20),
    );
    for (phase, name) in PHASES {
        println!("  {name:34} {:7.3} ms", phases.get(phase).as_secs_f64() * 1e3);
    }
    println!("  {:34} {:7.3} ms", "AdamW", optim.as_secs_f64() * 1e3);
    Ok(())
}
