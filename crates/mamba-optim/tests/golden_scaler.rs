//! The loss scaler against traces of PyTorch's `GradScaler`, and the unscaling against its kernel.
#![allow(clippy::unwrap_used)]

use mamba_optim::{LossScaler, ScalerConfig, ScalerState, unscale};
use serde::Deserialize;

#[derive(Deserialize)]
struct Trace {
    name: String,
    init_scale: f32,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
    init_growth_tracker: u32,
    found_inf: Vec<bool>,
    step_applied: Vec<bool>,
    scale_after: Vec<f32>,
    growth_tracker_after: Vec<u32>,
}

/// Traces that leave the default bounds: PyTorch has none.
const UNBOUNDED: [&str; 4] =
    ["interval_1", "long_overflow_no_floor", "growth_past_2_24", "growth_not_finite"];

fn traces() -> Vec<Trace> {
    serde_json::from_str(include_str!("data/grad_scaler_traces.json")).unwrap()
}

fn scaler(trace: &Trace, bounded: bool) -> LossScaler {
    let bounds = ScalerConfig::default();
    let mut scaler = LossScaler::new(ScalerConfig {
        init_scale: trace.init_scale,
        growth_factor: trace.growth_factor,
        backoff_factor: trace.backoff_factor,
        growth_interval: trace.growth_interval,
        max_scale: bounds.max_scale.filter(|_| bounded),
        min_scale: bounds.min_scale.filter(|_| bounded),
    })
    .unwrap();
    let start = ScalerState { scale: trace.init_scale, growth_tracker: trace.init_growth_tracker };
    scaler.restore(Some(start)).unwrap();
    scaler
}

#[test]
fn every_trace_is_followed_exactly() {
    let traces = traces();
    assert_eq!(traces.len(), 8);
    for trace in traces {
        let mut s = scaler(&trace, !UNBOUNDED.contains(&trace.name.as_str()));
        assert_eq!(trace.found_inf.len(), 60);
        for i in 0..60 {
            s.update(trace.found_inf[i]).unwrap();
            let state = s.state().unwrap();
            let want =
                ScalerState { scale: trace.scale_after[i], growth_tracker: trace.growth_tracker_after[i] };
            assert_eq!(state, want, "{} step {i}", trace.name);
            assert_eq!(trace.step_applied[i], !trace.found_inf[i]);
        }
    }
}

#[test]
fn bounds_are_the_only_departure() {
    for trace in traces().iter().filter(|t| UNBOUNDED.contains(&t.name.as_str())) {
        if trace.init_scale > 16_777_216.0 {
            continue;
        }
        let mut s = scaler(trace, true);
        for i in 0..60 {
            let result = s.update(trace.found_inf[i]);
            let unbounded = trace.scale_after[i];
            if !(1.0..=16_777_216.0).contains(&unbounded) {
                let bound = if unbounded < 1.0 { 1.0 } else { 16_777_216.0 };
                assert_eq!(s.scale(), bound, "{} step {i}", trace.name);
                assert_eq!(result.is_err(), unbounded < 1.0);
                break;
            }
            assert_eq!((s.scale(), result), (unbounded, Ok(())), "{} step {i}", trace.name);
        }
    }
}

#[test]
fn saved_in_the_middle_of_any_trace_it_continues() {
    for trace in traces() {
        for cut in [1, 17, 42] {
            let mut s = scaler(&trace, false);
            for &found in &trace.found_inf[..cut] {
                s.update(found).unwrap();
            }
            let saved = s.state();
            let mut s = scaler(&trace, false);
            s.restore(saved).unwrap();
            for i in cut..60 {
                s.update(trace.found_inf[i]).unwrap();
                assert_eq!(s.scale(), trace.scale_after[i], "{} cut {cut} step {i}", trace.name);
            }
        }
    }
}

#[test]
fn unscaling_is_exact_and_checks_the_scaled_gradient() {
    let json: serde_json::Value = serde_json::from_str(include_str!("data/unscale.json")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(include_bytes!("data/unscale.safetensors")).unwrap();
    let floats = |name: String| -> Vec<f32> {
        let bytes = tensors.tensor(&name).unwrap().data();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let cases = json["config"]["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 6);
    for (case, expected) in cases {
        let init_scale = expected["scale"].as_f64().unwrap() as f32;
        let found_inf = expected["found_inf"].as_bool().unwrap();
        let config = ScalerConfig { init_scale, max_scale: None, min_scale: None, ..Default::default() };
        let s = LossScaler::new(config).unwrap();
        let scaled = floats(format!("{case}/grad_scaled"));
        let mut grads = scaled.clone();
        assert_eq!(unscale(&mut grads, s.inv_scale()), found_inf, "{case}");
        let want = if found_inf { scaled } else { floats(format!("{case}/grad_unscaled")) };
        let bits = |x: &[f32]| x.iter().map(|f| f.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&grads), bits(&want), "{case}");
    }
}
