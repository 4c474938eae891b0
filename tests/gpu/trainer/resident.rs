//! Steps whose data lies on the device, and steps with vendor products: against the usual ones.

use super::DTYPES;
use super::routes::{ensure, lm_weights, text, tokens};
use crate::support::Test;
use mamba_optim::ScalerConfig;
use mamba_tests::contract::{Batch, Target, assert_same_but, snapshot};
use mamba_tests::golden::relative_error;
use mamba_trainer::{
    BackwardOpts, Device, GemmMode, LmTrainer, MambaTrainer, TokenBatch, TrainerError, WeightDtype,
};

/// (name, test) of both.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, _) in DTYPES {
        all.push((
            format!("resident/{dtype}/steps_have_the_bits_of_host_data"),
            Box::new(move |_| steps(dtype)),
        ));
        for mode in [GemmMode::CublasFast, GemmMode::CublasPedantic] {
            if (dtype, mode) != (WeightDtype::Tf32, GemmMode::CublasPedantic) {
                all.push((format!("blas/{dtype}/{mode}"), Box::new(move |_| vendor(dtype, mode))));
            }
        }
    }
    all
}

/// Copies a batch to the device by the caller's own means.
fn fill(trainer: &mut MambaTrainer, batch: &Batch) -> Result<(), String> {
    let mut to = trainer.device_buffers().map_err(text)?;
    let stream = to.gpu.compute();
    to.input.write(&batch.input, stream).map_err(text)?;
    to.d_temporal.write(&batch.d_temporal, stream).map_err(text)?;
    to.reset.fill_bytes(0, stream).map_err(text)
}

/// Fused, split and replayed steps from device memory, between steps from host memory with and without a mask.
fn steps(dtype: WeightDtype) -> Result<(), String> {
    let target = Target { device: Device::Cuda(0), dtype, mode: GemmMode::Deterministic };
    let build = || target.backbone_builder().input_gradient(true).build().map_err(text);
    let (mut host, mut device) = (build()?, build()?);
    let mask: Vec<u8> = (0..Batch::temporal().len() / 9).map(|i| u8::from(i % 3 == 0)).collect();
    let mut temporal = Batch::temporal();
    for seed in 0..8 {
        let batch = Batch::new(seed);
        match seed {
            1 | 5 => {
                host.step_packed(&batch.input, Some(&mask), &batch.d_temporal).map_err(text)?;
                device.step_packed(&batch.input, Some(&mask), &batch.d_temporal).map_err(text)?;
            }
            3 => {
                host.step(&batch.input, &batch.d_temporal).map_err(text)?;
                device.step(&batch.input, &batch.d_temporal).map_err(text)?;
            }
            2 => {
                host.forward(&batch.input, &mut temporal).map_err(text)?;
                host.backward_step(&batch.d_temporal, BackwardOpts::new()).map_err(text)?;
                fill(&mut device, &batch)?;
                device.forward_on_device().map_err(text)?;
                let from = device.device_buffers().map_err(text)?;
                let mut seen = Batch::temporal();
                from.temporal.read(&mut seen, from.gpu.compute()).map_err(text)?;
                ensure(seen == temporal, || "the output on the device is another".to_owned())?;
                device.backward_step_on_device(BackwardOpts::new()).map_err(text)?;
            }
            _ => {
                host.step(&batch.input, &batch.d_temporal).map_err(text)?;
                fill(&mut device, &batch)?;
                device.step_on_device().map_err(text)?;
            }
        }
        let want = host.input_gradient().map_err(text)?.into_owned();
        let from = device.device_buffers().map_err(text)?;
        let mut seen = vec![0.0; want.len()];
        let view = from.input_gradient.ok_or("no input gradient")?;
        view.read(&mut seen, from.gpu.compute()).map_err(text)?;
        ensure(seen == want, || format!("step {seed}: the input gradient on the device is another"))?;
        assert_same_but(&snapshot(&mut host), &snapshot(&mut device), &["graph"], &format!("step {seed}"));
        if seed == 3 {
            device.capture_graph().map_err(text)?;
        }
    }
    Ok(())
}

/// Steps with cuBLASLt against steps with this workspace's products; without the library: the error that says so.
fn vendor(dtype: WeightDtype, mode: GemmMode) -> Result<(), String> {
    let start = lm_weights()?;
    let scaler = ScalerConfig { init_scale: 1024.0, ..ScalerConfig::default() };
    let build = |mode| {
        let builder = LmTrainer::builder(start.clone(), 3, 33).device(Device::Cuda(0)).dtype(dtype);
        builder.lr(2e-3).scaler(scaler).gemm_mode(mode).build()
    };
    let run = |mut trainer: LmTrainer| -> Result<Vec<f32>, String> {
        for step in 0..10 {
            let (inputs, targets) = tokens(step, 99);
            trainer.step(&TokenBatch::new(&inputs, &targets)).map_err(text)?;
            if step == 4 {
                trainer.capture_graph().map_err(text)?;
            }
        }
        let moved = trainer.weights().map_err(text)?;
        Ok(moved.arena().iter().zip(start.arena()).map(|(a, b)| a - b).collect())
    };
    let trainer = match build(mode) {
        Ok(trainer) => trainer,
        Err(error @ (TrainerError::Device(_) | TrainerError::Model(_))) => {
            let text = error.to_string();
            println!("{dtype}, {mode}: {text}");
            return ensure(text.contains("libcublasLt was not found: install it"), || text.clone());
        }
        Err(error) => return Err(error.to_string()),
    };
    let want: Vec<f64> =
        run(build(GemmMode::Deterministic).map_err(text)?)?.iter().map(|&w| f64::from(w)).collect();
    let off = relative_error(&run(trainer)?, &want);
    println!("{dtype}, {mode}: after 10 steps the movement is off by {off:.1e}");
    // An H200 showed up to 6.4e-6, 3.4e-3, 8.2e-3, 4.9e-3.
    let bound = match dtype {
        WeightDtype::F32 => 2e-5,
        WeightDtype::Tf32 => 1e-2,
        WeightDtype::Bf16 => 3e-2,
        WeightDtype::F16 => 1.5e-2,
    };
    ensure(off < bound, || format!("movement off by {off:.1e}"))
}
