//! `mamba bench`: time of a training step.

use crate::args::BenchArgs;
use crate::error::{CliError, Result, at_least_one, thread_count};
use crate::memory;
use crate::report::{count, print_line, thousands};
use crate::train::settings::default_dtype;
use mamba_model::cpu::{CpuModel, CpuOptions, PHASES};
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};
use mamba_trainer::{Device, LmTrainer, TokenBatch};
use std::time::{Duration, Instant};

/// Steps before the timed ones.
const WARMUP: usize = 2;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    at_least_one("--vocab", args.vocab)?;
    at_least_one("--batch", args.batch)?;
    at_least_one("--seq-len", args.seq_len)?;
    at_least_one("--steps", args.steps)?;
    args.machine.threads.map(thread_count).transpose()?;
    let backbone = MambaConfig { d_state: args.d_state, ..MambaConfig::new(args.d_model, args.layers) };
    let config = ModelConfig::language_model(backbone, LmHeadConfig::new(args.vocab));
    config.validate().map_err(CliError::of_sizes)?;
    memory::check(&config, args.batch, args.seq_len, Some(args.machine.recompute), args.machine.device)?;
    let weights = MambaWeights::init(&config, 0)?;
    // Checks the sizes before they are multiplied.
    let mut trainer = build(args, weights.clone())?;
    let work = Work::new(args);
    let ctx = trainer.ctx();
    let parameters = thousands(ctx.table.param_count() as u64);
    print_line(&format!(
        "d_model {}, {}, {parameters} parameters, {} x {} tokens, {} in {}",
        args.d_model,
        count(args.layers as u64, "layer"),
        args.batch,
        args.seq_len,
        ctx.device,
        ctx.dtype
    ));
    let times = work.steps(&mut trainer, args.steps)?;
    let tokens = (args.batch * args.seq_len) as f64;
    let (median, fastest, slowest) = spread(times);
    print_line(&format!(
        "step {:.3} ms (fastest {:.3}, slowest {:.3}), {} tokens/s",
        milliseconds(median),
        milliseconds(fastest),
        milliseconds(slowest),
        thousands((tokens / median.as_secs_f64()).round() as u64)
    ));
    match trainer.ctx().device {
        Device::Cpu => work.phases(args, weights),
        Device::Cuda(_) => Ok(()),
    }
}

fn build(args: &BenchArgs, weights: MambaWeights) -> Result<LmTrainer> {
    let m = &args.machine;
    let mut builder = LmTrainer::builder(weights, args.batch, args.seq_len)
        .device(m.device)
        .dtype(m.dtype.unwrap_or(default_dtype(m.device)))
        .gemm_mode(m.gemm)
        .recompute(m.recompute);
    if let Some(threads) = m.threads {
        builder = builder.threads(threads);
    }
    Ok(builder.build()?)
}

/// Random tokens.
struct Work {
    inputs: Vec<u32>,
    targets: Vec<i32>,
}

impl Work {
    fn new(args: &BenchArgs) -> Self {
        let mut rng = SplitMix64::new(0, "bench");
        let mut token = || rng.next_u64() % args.vocab as u64;
        let tokens = args.batch * args.seq_len;
        let inputs = (0..tokens).map(|_| token() as u32).collect();
        Self { inputs, targets: (0..tokens).map(|_| token() as i32).collect() }
    }

    /// Time of each step. Asking for the metrics waits for the device.
    fn steps(&self, trainer: &mut LmTrainer, steps: usize) -> Result<Vec<Duration>> {
        let batch = TokenBatch::new(&self.inputs, &self.targets);
        let mut times = Vec::with_capacity(steps);
        for i in 0..WARMUP + steps {
            let start = Instant::now();
            trainer.step(&batch)?;
            trainer.last_metrics()?;
            if i >= WARMUP {
                times.push(start.elapsed());
            }
            if matches!(trainer.ctx().device, Device::Cuda(_)) && !trainer.has_graph() {
                trainer.capture_graph()?;
            }
        }
        Ok(times)
    }

    /// Prints where the CPU engine's time goes; the optimizer is not part of the engine.
    fn phases(&self, args: &BenchArgs, weights: MambaWeights) -> Result<()> {
        let options = CpuOptions { threads: args.machine.threads, recompute: args.machine.recompute };
        let config = weights.config().clone();
        let mut engine = CpuModel::new(&config, args.batch, args.seq_len, &options)?;
        let mut state = RecurrentState::zeros(&config.backbone, args.batch);
        let params = weights.into_arena();
        let mut grads = vec![0.0; params.len()];
        for i in 0..WARMUP + args.steps {
            if i == WARMUP {
                engine.take_phase_times();
            }
            engine.refresh(&params)?;
            engine.forward(&params, ModelInput::Tokens(&self.inputs), None, &mut state)?;
            engine.loss_backward(&params, &self.targets, None, 1.0, &mut grads)?;
        }
        let times = engine.take_phase_times();
        let total = times.total().as_secs_f64();
        for (phase, name) in PHASES {
            let time = times.get(phase);
            let share = 100.0 * time.as_secs_f64() / total;
            print_line(&format!(
                "  {name:<34} {:>9.3} ms {share:>5.1} %",
                milliseconds(time) / args.steps as f64
            ));
        }
        let mib = engine.memory_bytes() as f64 / f64::from(1 << 20);
        print_line(&format!("  activations and scratch: {mib:.1} MiB"));
        Ok(())
    }
}

/// Median, smallest and largest of at least one time.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort();
    let at = |i: usize| times.get(i).copied().unwrap_or_default();
    (at(times.len() / 2), at(0), at(times.len().saturating_sub(1)))
}

fn milliseconds(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_median_and_ends() {
        let ms = Duration::from_millis;
        assert_eq!(spread(vec![ms(5), ms(1), ms(3)]), (ms(3), ms(1), ms(5)));
        assert_eq!(spread(vec![ms(7)]), (ms(7), ms(7), ms(7)));
    }
}
