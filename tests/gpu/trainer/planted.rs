//! NaN and infinity in any weight are never laundered: where the oracle's result is not finite, the device's is not either.

use crate::support::Test;
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::gemm::Precision;
use mamba_kernels::{Elem, Kernels};
use mamba_model::cuda::{Arithmetic, CudaModel, CudaOptions, DeviceBatch, DeviceState, Weights};
use mamba_model::oracle::Oracle;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, ModelConfig, ModelInput};
use mamba_optim::cuda::DeviceTail;
use mamba_optim::{ControlSpans, LossScaler, NormWindow, ParamGroups, ParamSpan};
use mamba_tests::random::{shaken, wide};

const BATCH: usize = 2;
const SEQ_LEN: usize = 19;
const VOCAB: usize = 13;

/// (name, test) of planted values.
pub fn trials() -> Vec<(String, Test)> {
    let tf32 = Arithmetic::Own(Precision::Tf32);
    let exact = Arithmetic::Own(Precision::Exact);
    vec![
        ("planted/f32".to_owned(), Box::new(move |k| planted::<f32>(k, exact))),
        ("planted/tf32".to_owned(), Box::new(move |k| planted::<f32>(k, tf32))),
        ("planted/bf16".to_owned(), Box::new(move |k| planted::<bf16>(k, exact))),
        ("planted/f16".to_owned(), Box::new(move |k| planted::<f16>(k, exact))),
    ]
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Loss and gradients of a model with these weights.
fn run<T: Elem>(
    kernels: &Kernels,
    arithmetic: Arithmetic,
    (config, arena): (&ModelConfig, &[f32]),
    (inputs, targets): (&[u32], &[i32]),
) -> Result<(f64, Vec<f32>), String> {
    let gpu = kernels.gpu();
    let table = mamba_model::ParamTable::new(config).map_err(text)?;
    let spans = table.iter().map(|p| ParamSpan::new(p.name.clone(), p.span.range(), p.decay)).collect();
    let groups = ParamGroups::new(arena.len(), spans).map_err(text)?;
    let control = ControlSpans::new(arena.len(), Vec::new()).map_err(text)?;
    let a_log = table.layers.iter().map(|l| l.a_log.range()).collect();
    let (scaler, norms) = (LossScaler::disabled(), NormWindow::default());
    let mut tail = DeviceTail::new(kernels, groups, &control, a_log, scaler, &norms).map_err(text)?;
    let params = DeviceBuf::from_host(gpu, arena).map_err(text)?;
    let halves = size_of::<T>() != size_of::<f32>();
    let mut shadow = if halves { Some(DeviceBuf::<T>::zeros(gpu, arena.len()).map_err(text)?) } else { None };
    tail.refresh(params.view(), shadow.as_mut().map(DeviceBuf::view_mut)).map_err(text)?;
    let options = CudaOptions { arithmetic, recompute: false, input_gradient: false };
    let mut model = CudaModel::<T>::new(kernels, config, BATCH, SEQ_LEN, &options).map_err(text)?;
    let mut batch = DeviceBatch::new(gpu, config, BATCH, SEQ_LEN).map_err(text)?;
    let mut state = DeviceState::new(gpu, &config.backbone, BATCH).map_err(text)?;
    batch.stage_input(ModelInput::Tokens(inputs), None).map_err(text)?;
    batch.stage_targets(targets, None).map_err(text)?;
    batch.commit().map_err(text)?;
    let mut grads = DeviceBuf::<f32>::zeros(gpu, arena.len()).map_err(text)?;
    let weights =
        Weights { master: params.view(), shadow: shadow.as_ref().map(DeviceBuf::view), neg_a: tail.neg_a() };
    model.forward(weights, &batch, Some(&mut state)).map_err(text)?;
    model.loss_backward(weights, &batch, &mut state, tail.loss_scale(), grads.view_mut()).map_err(text)?;
    let mut totals = [Default::default()];
    model.loss_totals().ok_or("no loss")?.read(&mut totals, gpu.compute()).map_err(text)?;
    Ok((totals[0].nll, grads.to_host(gpu.compute()).map_err(text)?))
}

fn planted<T: Elem>(kernels: &Kernels, arithmetic: Arithmetic) -> Result<(), String> {
    let mut backbone = MambaConfig::new(9, 2);
    (backbone.proj_bias, backbone.d_state) = (true, 5);
    let head = LmHeadConfig { tied: false, ..LmHeadConfig::new(VOCAB) };
    let config = ModelConfig::language_model(backbone, head);
    let mut rng = SplitMix64::new(1, "planted on the device");
    let clean = shaken(&config, &mut rng);
    let inputs: Vec<u32> = (0..BATCH * SEQ_LEN).map(|i| (i % VOCAB) as u32).collect();
    let targets: Vec<i32> = inputs.iter().map(|&i| (i as i32 * 5 + 1) % VOCAB as i32).collect();
    for p in clean.table().iter() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut arena = clean.arena().to_vec();
            arena[p.span.offset + (rng.next_u64() % p.span.len as u64) as usize] = bad;
            let oracle = Oracle::new(&config, wide(&arena)).map_err(text)?;
            let trace = oracle.forward(BATCH, ModelInput::Tokens(&inputs), None, (&[], &[]));
            let (sums, want) = oracle.loss_backward(&trace, &targets, None, 1.0);
            let (nll, grads) = run::<T>(kernels, arithmetic, (&config, &arena), (&inputs, &targets))?;
            let place = format!("{bad} in {}", p.name);
            if !sums.nll.is_finite() && nll.is_finite() {
                return Err(format!("{place}: the loss is {nll}, the oracle's {}", sums.nll));
            }
            for q in clean.table().iter() {
                let pairs = q.span.of(&grads).iter().zip(q.span.of(&want.params));
                if let Some((got, want)) = pairs.into_iter().find(|(g, w)| g.is_finite() && !w.is_finite()) {
                    return Err(format!("{place}: a gradient of {} is {got}, the oracle's {want}", q.name));
                }
            }
        }
    }
    Ok(())
}
