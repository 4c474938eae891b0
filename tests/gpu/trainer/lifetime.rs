//! Many trainers, many captures, many threads: memory stays flat, bits stay equal.

use crate::support::Test;
use mamba_kernels::Kernels;
use mamba_model::rng::SplitMix64;
use mamba_model::{MambaConfig, MambaWeights, ModelConfig};
use mamba_tests::contract::{Batch, Target, snapshot};
use mamba_tests::random::draws;
use mamba_trainer::{Device, GemmMode, MambaTrainer, StepOpts, TrainSessionCfg, WeightDtype};

const F32: Target =
    Target { device: Device::Cuda(0), dtype: WeightDtype::F32, mode: GemmMode::Deterministic };
const BF16: Target = Target { dtype: WeightDtype::Bf16, ..F32 };

/// (name, test) of lifetimes.
pub fn trials() -> Vec<(String, Test)> {
    vec![
        ("lifetime/captures_leave_memory_flat".to_owned(), Box::new(captures)),
        ("lifetime/trainers_leave_memory_flat".to_owned(), Box::new(trainers)),
        ("lifetime/capture_beside_other_threads".to_owned(), Box::new(|_| capture_beside_others())),
        ("lifetime/large_inputs_are_free_after_each_call".to_owned(), Box::new(|_| large_inputs())),
        (HUNDRED.to_owned(), Box::new(|_| hundred_steps())),
        ("lifetime/three_processes_have_the_same_bits".to_owned(), Box::new(|_| three_processes())),
    ]
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn free(kernels: &Kernels) -> Result<usize, String> {
    kernels.gpu().compute().synchronize().map_err(text)?;
    Ok(kernels.gpu().memory().map_err(text)?.0)
}

/// Fails where `round` number 11 and later ones take memory and do not give it back.
fn flat(
    kernels: &Kernels,
    rounds: usize,
    mut round: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let mut before = 0;
    for i in 0..rounds {
        if i == 10 {
            before = free(kernels)?;
        }
        round()?;
    }
    let after = free(kernels)?;
    match after >= before {
        true => Ok(()),
        false => Err(format!("{} bytes less are free after {rounds} rounds", before - after)),
    }
}

fn captures(kernels: &Kernels) -> Result<(), String> {
    let mut trainer = F32.backbone();
    let batch = Batch::new(1);
    trainer.step(&batch.input, &batch.d_temporal).map_err(text)?;
    flat(kernels, 200, || {
        trainer.capture_graph().map_err(text)?;
        trainer.step(&batch.input, &batch.d_temporal).map_err(text)?;
        trainer.drop_graph();
        Ok(())
    })
}

fn trainers(kernels: &Kernels) -> Result<(), String> {
    let batch = Batch::new(1);
    flat(kernels, 1000, || {
        let mut trainer = BF16.backbone();
        trainer.step(&batch.input, &batch.d_temporal).map_err(text)?;
        Ok(())
    })
}

/// Other threads create, run and drop trainers while this one captures and replays.
fn capture_beside_others() -> Result<(), String> {
    let run = |mut trainer: MambaTrainer| -> Result<_, String> {
        for i in 0..30 {
            let batch = Batch::new(i);
            trainer.step(&batch.input, &batch.d_temporal).map_err(text)?;
            match i % 3 {
                0 => trainer.capture_graph().map_err(text)?,
                2 => trainer.drop_graph(),
                _ => {}
            }
        }
        Ok(snapshot(&mut trainer))
    };
    let alone = run(BF16.backbone())?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let noise = || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut other = F32.backbone();
                let batch = Batch::new(7);
                other.step(&batch.input, &batch.d_temporal).map_err(text)?;
            }
            Ok::<(), String>(())
        };
        let others = [scope.spawn(noise), scope.spawn(noise)];
        let beside = run(BF16.backbone());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for other in others {
            other.join().map_err(|_| "a thread panicked")??;
        }
        beside
    })?;
    if alone == beside { Ok(()) } else { Err("the bits differ from those of a run alone".to_owned()) }
}

/// 500 steps whose input, over 1 MiB, is overwritten as soon as the call returns: eager and replayed.
fn large_inputs() -> Result<(), String> {
    let (batch, seq_len, width) = (4, 256, 300);
    let config = ModelConfig::backbone(MambaConfig::new(16, 1).with_input_dim(width));
    let weights = MambaWeights::init(&config, 3).map_err(text)?;
    let mut rng = SplitMix64::new(2, "large inputs");
    let inputs: Vec<Vec<f32>> = (0..5).map(|_| draws(&mut rng, batch * seq_len * width)).collect();
    let upstream = draws(&mut rng, batch * seq_len * 16);
    let run = |overwrite: bool, graph: bool| -> Result<_, String> {
        let session = TrainSessionCfg::new(width, batch, seq_len);
        let builder = MambaTrainer::builder(weights.clone(), session).device(Device::Cuda(0));
        let mut trainer = builder.build().map_err(text)?;
        let (mut x, mut d) = (inputs[0].clone(), upstream.clone());
        for step in 0..500 {
            x.copy_from_slice(&inputs[step % 5]);
            d.copy_from_slice(&upstream);
            trainer.step(&x, &d).map_err(text)?;
            if overwrite {
                x.fill(f32::NAN);
                d.fill(f32::NAN);
            }
            if graph && step == 0 {
                trainer.capture_graph().map_err(text)?;
            }
        }
        Ok(snapshot(&mut trainer).parts)
    };
    let want = run(false, false)?;
    for graph in [false, true] {
        if run(true, graph)? != want {
            return Err(format!("overwriting the input changes the run (graph: {graph})"));
        }
    }
    Ok(())
}

/// Name of the trial that prints a checksum for its own copies.
const HUNDRED: &str = "lifetime/a_hundred_clipped_steps";

/// Prints a checksum of the bits after 100 steps with clipping.
fn hundred_steps() -> Result<(), String> {
    for target in [F32, BF16] {
        let opts = StepOpts::new().with_clip_max_norm(0.5);
        let mut trainer = target.backbone_builder().step_opts(opts).build().map_err(text)?;
        for i in 0..100 {
            let batch = Batch::new(i);
            trainer.step(&batch.input, &batch.d_temporal).map_err(text)?;
        }
        let parts = snapshot(&mut trainer).parts;
        let fold = |sum: u64, bits: &u32| (sum ^ u64::from(*bits)).wrapping_mul(0x0100_0000_01b3);
        let sum = parts.iter().flat_map(|(_, bits)| bits).fold(0xcbf2_9ce4_8422_2325, fold);
        println!("bits after 100 steps, {}: {sum:016x}", target.dtype);
    }
    Ok(())
}

/// Three processes, each with its own driver context, print the same checksums.
fn three_processes() -> Result<(), String> {
    let program = std::env::current_exe().map_err(text)?;
    let run = || -> Result<Vec<String>, String> {
        let mut command = std::process::Command::new(&program);
        let out = command.args(["--exact", HUNDRED, "--nocapture"]).output().map_err(text)?;
        let lines = String::from_utf8_lossy(&out.stdout).into_owned();
        // The harness's own words stand in front of the first.
        let sums = lines.lines().filter_map(|l| l.find("bits after").map(|at| l[at..].to_owned()));
        Ok(sums.collect())
    };
    let first = run()?;
    if first.len() != 2 {
        return Err(format!("the first process printed {first:?}"));
    }
    for _ in 0..2 {
        let other = run()?;
        if other != first {
            return Err(format!("{first:?} in one process, {other:?} in another"));
        }
    }
    println!("{}", first.join(", "));
    Ok(())
}
