//! The fused update against an `f64` reference, and its bits against the documented arithmetic.
#![allow(clippy::unwrap_used)]

use mamba_optim::{
    AdamWArenas, AdamWConfig, AdamWState, LossScaler, OptimError, ParamGroups, ParamSpan, ScalerConfig,
    Schedule, StepOptions, StepScalars, adamw_update,
};
use proptest::prelude::*;

/// Numbers in -1..1 from a small generator (splitmix64).
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|f| f.to_bits()).collect()
}

fn scalars(config: &AdamWConfig, completed: u64) -> StepScalars {
    let none = LossScaler::disabled();
    StepScalars::new(config, &Schedule::constant(), completed, &none, &StepOptions::default()).unwrap()
}

fn run(
    groups: &ParamGroups,
    config: &AdamWConfig,
    params: &mut [f32],
    steps: u64,
    grad: impl Fn(u64) -> Vec<f32>,
    clip: f32,
) -> AdamWState {
    let mut state = AdamWState::new(params.len());
    for t in 0..steps {
        let grads = grad(t);
        let AdamWState { m, v, .. } = &mut state;
        let arenas = AdamWArenas { params, grads: &grads, m, v };
        adamw_update(arenas, groups, &scalars(config, t), clip).unwrap();
        state.step += 1;
    }
    state
}

/// AdamW of one element in `f64`, straight from the formula.
#[derive(Clone, Copy)]
struct Reference {
    p: f64,
    m: f64,
    v: f64,
}

impl Reference {
    fn step(&mut self, c: &AdamWConfig, t: i32, g: f64, decays: bool) {
        let wd = if decays { c.weight_decay() } else { 0.0 };
        self.m = c.beta1() * self.m + (1.0 - c.beta1()) * g;
        self.v = c.beta2() * self.v + (1.0 - c.beta2()) * g * g;
        let m_hat = self.m / (1.0 - c.beta1().powi(t));
        let v_hat = self.v / (1.0 - c.beta2().powi(t));
        self.p = (1.0 - c.lr() * wd) * self.p - c.lr() * m_hat / (v_hat.sqrt() + c.eps());
    }
}

fn relative(got: impl Iterator<Item = f64>, want: impl Iterator<Item = f64>) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (a, b) in got.zip(want) {
        error += (a - b) * (a - b);
        size += b * b;
    }
    if size == 0.0 { f64::sqrt(error) } else { f64::sqrt(error / size) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn forty_steps_follow_the_f64_reference(
        len in 1usize..300,
        seed in any::<u64>(),
        log_lr in -3.0f64..-1.5,
        weight_decay in 0.0f64..0.2,
        beta1 in 0.0f64..0.95,
        beta2 in 0.8f64..0.9999,
        log_eps in -10.0f64..-2.0,
        log_grad in -3.0f32..3.0,
        clip in 0.01f32..1.0,
    ) {
        let config = AdamWConfig::default()
            .with_lr(10f64.powf(log_lr)).unwrap()
            .with_weight_decay(weight_decay).unwrap()
            .with_betas(beta1, beta2).unwrap()
            .with_eps(10f64.powf(log_eps)).unwrap();
        let cut = len / 2;
        let spans = [(0..cut, true), (cut..len, false)];
        let spans = spans.into_iter().filter(|(r, _)| !r.is_empty());
        let groups = ParamGroups::new(len, spans.map(|(r, d)| ParamSpan::new("t", r, d)).collect()).unwrap();
        let size = 10f32.powf(log_grad);
        let grad = |t: u64| -> Vec<f32> { noise(seed ^ (t + 1), len).iter().map(|g| g * size).collect() };

        let start = noise(seed, len);
        let mut params = start.clone();
        let state = run(&groups, &config, &mut params, 40, grad, clip);

        let mut reference: Vec<Reference> =
            start.iter().map(|&p| Reference { p: f64::from(p), m: 0.0, v: 0.0 }).collect();
        for t in 0..40 {
            for (i, (r, g)) in reference.iter_mut().zip(grad(t)).enumerate() {
                r.step(&config, t as i32 + 1, f64::from(g) * f64::from(clip), i < cut);
            }
        }
        let wide = |x: &[f32]| x.iter().map(|&f| f64::from(f)).collect::<Vec<_>>().into_iter();
        let m = relative(wide(&state.m), reference.iter().map(|r| r.m));
        let v = relative(wide(&state.v), reference.iter().map(|r| r.v));
        let p = relative(wide(&params), reference.iter().map(|r| r.p));
        let moved = relative(
            params.iter().zip(&start).map(|(a, b)| f64::from(*a) - f64::from(*b)),
            reference.iter().zip(&start).map(|(r, &b)| r.p - f64::from(b)),
        );
        // Largest of 3,000 cases: 4.6e-7, 6.0e-7, 1.0e-6; the update, whose elements may cancel, 4.8e-4.
        prop_assert!(m < 2e-6, "m {m:e}");
        prop_assert!(v < 2e-6, "v {v:e}");
        prop_assert!(p < 4e-6, "p {p:e}");
        prop_assert!(moved < 2e-3, "update {moved:e}");
    }

    #[test]
    fn bits_are_those_of_the_documented_arithmetic(
        len in prop_oneof![1usize..70, 16_380usize..16_400, 40_000usize..40_040],
        seed in any::<u64>(),
        cut in 0.0f64..1.0,
        gap in 0usize..5,
    ) {
        let config = AdamWConfig::default().with_weight_decay(0.1).unwrap();
        let cut = (cut * len as f64) as usize;
        let second = len.min(cut + gap);
        let spans = [(0..cut, true), (second..len, false)].into_iter().filter(|(r, _)| !r.is_empty());
        let groups = ParamGroups::new(len, spans.map(|(r, d)| ParamSpan::new("t", r, d)).collect()).unwrap();
        let mut params = noise(seed, len);
        let mut grads = noise(seed ^ 7, len);
        // Values a shortcut would get wrong.
        for (i, odd) in [f32::NAN, f32::INFINITY, -0.0, 1e-42, 1e25, f32::MIN_POSITIVE].into_iter().enumerate() {
            if let Some(g) = grads.get_mut(i * 11) { *g = odd; }
        }
        let mut m = noise(seed ^ 8, len);
        let mut v: Vec<f32> = noise(seed ^ 9, len).iter().map(|x| x * x).collect();
        let (p0, m0, v0) = (params.clone(), m.clone(), v.clone());
        let s = scalars(&config, 12);
        let clip = 0.37;
        let arenas = AdamWArenas { params: &mut params, grads: &grads, m: &mut m, v: &mut v };
        adamw_update(arenas, &groups, &s, clip).unwrap();
        for i in 0..len {
            let (mut p, mut first, mut second_moment) = (p0[i], m0[i], v0[i]);
            if i < cut || i >= second {
                let decay = if i < cut { s.decay } else { 1.0 };
                let g = grads[i] * s.inv_scale * clip;
                first = s.beta1 * first + s.one_minus_beta1 * g;
                second_moment = s.beta2 * second_moment + s.one_minus_beta2 * g * g;
                p = decay * p - s.lr * (first * s.bc1 / ((second_moment * s.bc2).sqrt() + s.eps));
            }
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            prop_assert!(same(params[i], p) && same(m[i], first) && same(v[i], second_moment), "element {i}");
        }
    }
}

#[test]
fn a_thousand_steps_stay_close_to_f64() {
    let len = 257;
    let config = AdamWConfig::default();
    let groups = ParamGroups::uniform(len).unwrap();
    let grad = |t: u64| -> Vec<f32> { noise(t + 1, len).iter().map(|g| g + 0.3).collect() };
    let start = noise(0, len);
    let mut params = start.clone();
    run(&groups, &config, &mut params, 1_000, grad, 1.0);
    let mut reference: Vec<Reference> =
        start.iter().map(|&p| Reference { p: f64::from(p), m: 0.0, v: 0.0 }).collect();
    for t in 0..1_000 {
        for (r, g) in reference.iter_mut().zip(grad(t)) {
            r.step(&config, t as i32 + 1, f64::from(g), true);
        }
    }
    let moved = relative(
        params.iter().zip(&start).map(|(a, b)| f64::from(*a) - f64::from(*b)),
        reference.iter().zip(&start).map(|(r, &b)| r.p - f64::from(b)),
    );
    // Measured 1.8e-5; most of it is β₂ rounded to f32, 1.3e-8 a step.
    assert!(moved < 6e-5, "update {moved:e}");
}

#[test]
fn the_first_step_by_hand() {
    // With β₁ = β₂ = 0 both moments are the gradient and its square, so the step is lr * g / (|g| + eps).
    let config = AdamWConfig::default()
        .with_lr(0.5)
        .unwrap()
        .with_weight_decay(0.25)
        .unwrap()
        .with_betas(0.0, 0.0)
        .unwrap()
        .with_eps(1.0)
        .unwrap();
    let spans = vec![ParamSpan::new("w", 0..2, true), ParamSpan::new("b", 2..3, false)];
    let groups = ParamGroups::new(3, spans).unwrap();
    let mut params = [8.0f32, 8.0, 8.0];
    let state = run(&groups, &config, &mut params, 1, |_| vec![3.0, -1.0, 3.0], 1.0);
    assert_eq!(state.m, [3.0, -1.0, 3.0]);
    assert_eq!(state.v, [9.0, 1.0, 9.0]);
    // 8 * (1 - 0.5 * 0.25) = 7; 0.5 * 3/4 = 0.375; 0.5 * -1/2 = -0.25.
    assert_eq!(params, [6.625, 7.25, 7.625]);
}

#[test]
fn the_no_decay_switch_reaches_the_update() {
    let spans = vec![ParamSpan::new("w", 0..1, true), ParamSpan::new("b", 1..2, false)];
    let mut groups = ParamGroups::new(2, spans).unwrap();
    let config = AdamWConfig::default().with_lr(0.5).unwrap().with_weight_decay(0.5).unwrap();
    for (on, bias) in [(true, 4.0), (false, 3.0)] {
        groups.set_reference_no_decay(on);
        let mut params = [4.0f32, 4.0];
        run(&groups, &config, &mut params, 1, |_| vec![0.0; 2], 1.0);
        assert_eq!(params, [3.0, bias]);
    }
}

#[test]
fn a_power_of_two_scale_leaves_no_trace() {
    let len = 1_003;
    let config = AdamWConfig::default();
    let groups = ParamGroups::uniform(len).unwrap();
    let mut plain = noise(1, len);
    let plain_state = run(&groups, &config, &mut plain, 1, |_| noise(2, len), 1.0);

    let scaler = LossScaler::new(ScalerConfig::default()).unwrap();
    let grads: Vec<f32> = noise(2, len).iter().map(|g| g * scaler.scale()).collect();
    let s = StepScalars::new(&config, &Schedule::constant(), 0, &scaler, &StepOptions::default()).unwrap();
    let mut params = noise(1, len);
    let mut state = AdamWState::new(len);
    let AdamWState { m, v, .. } = &mut state;
    adamw_update(AdamWArenas { params: &mut params, grads: &grads, m, v }, &groups, &s, 1.0).unwrap();
    assert_eq!(bits(&params), bits(&plain));
    assert_eq!(bits(&state.m), bits(&plain_state.m));
    assert_eq!(bits(&state.v), bits(&plain_state.v));
}

#[test]
fn a_wrong_length_is_named_and_writes_nothing() {
    let config = AdamWConfig::default();
    let groups = ParamGroups::uniform(5).unwrap();
    for short in ["params", "grads", "m", "v"] {
        let len = |name| if name == short { 4 } else { 5 };
        let (mut p, g) = (noise(1, len("params")), noise(2, len("grads")));
        let (mut m, mut v) = (vec![0.0; len("m")], vec![0.0; len("v")]);
        let arenas = AdamWArenas { params: &mut p, grads: &g, m: &mut m, v: &mut v };
        let want = OptimError::Length { name: short, got: 4, expected: 5 };
        assert_eq!(adamw_update(arenas, &groups, &scalars(&config, 0), 1.0), Err(want));
        assert_eq!(bits(&p), bits(&noise(1, len("params"))));
        assert!(m.iter().chain(&v).all(|x| x.to_bits() == 0));
    }
}

#[test]
fn loaded_moments_are_checked() {
    let good = AdamWState { m: vec![0.5; 3], v: vec![0.25; 3], step: 7 };
    assert_eq!(good.check(3), Ok(()));
    assert_eq!(good.check(4), Err(OptimError::Length { name: "m", got: 3, expected: 4 }));
    let bad = [
        AdamWState { m: vec![0.0, f32::NAN, 0.0], ..good.clone() },
        AdamWState { v: vec![0.0, 0.0, f32::INFINITY], ..good.clone() },
        AdamWState { v: vec![-1.0, 0.0, 0.0], ..good.clone() },
        AdamWState { step: u64::MAX, ..good.clone() },
    ];
    for state in bad {
        assert!(matches!(state.check(3), Err(OptimError::State { .. })), "{state:?}");
    }
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<AdamWState>(&text).unwrap(), good);
}
