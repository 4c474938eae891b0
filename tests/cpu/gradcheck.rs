//! The oracle's gradients against differences of its own forward pass: every tensor and the input of whole models, and the
//! single operations with resets and with gradients of the state they leave.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::oracle::conv::Conv;
use mamba_model::oracle::scan::Scan;
use mamba_model::oracle::{Gradients, Oracle, Trace, cross_entropy, ops};
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput};
use mamba_tests::golden::relative_error;

/// Step of the differences, exact in f32 as the inputs are.
const H: f64 = 1.0 / 1024.0;
/// Elements of a tensor that are tried; all of them where it has no more.
const TRIED: usize = 12;

/// Derivative of `f` at 0 from four values; the rest is H⁴/30 of the fifth derivative.
fn derivative(f: impl Fn(f64) -> f64) -> f64 {
    (8.0 * (f(H) - f(-H)) - (f(2.0 * H) - f(-2.0 * H))) / (12.0 * H)
}

/// Up to [`TRIED`] different elements, both ends included.
fn tried(len: usize) -> impl Iterator<Item = usize> {
    let count = TRIED.min(len);
    (0..count).map(move |k| k * (len - 1) / (count - 1).max(1))
}

/// Largest error of a gradient, relative to its own largest element.
fn worst(grad: &[f64], shifted_loss: impl Fn(usize, f64) -> f64) -> f64 {
    let scale = grad.iter().fold(1e-3f64, |m, g| m.max(g.abs()));
    let error = |i: usize| (derivative(|h| shifted_loss(i, h)) - grad[i]).abs() / scale;
    tried(grad.len()).map(error).fold(0.0, |w, e| if e <= w { w } else { e })
}

/// Where the weights lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Regime {
    /// Around the initial values.
    Mild,
    /// A_log + 4: states that forget at once.
    FastDecay,
    /// Δ around 20, where softplus becomes the identity, and A_log - 4, so that the states still remember.
    LargeStep,
    /// A_log + 4 and Δ around 20.
    Both,
}

impl Regime {
    const ALL: [Self; 4] = [Self::Mild, Self::FastDecay, Self::LargeStep, Self::Both];

    /// Largest error allowed. Where Δ is around 20, differences step over the threshold, at which softplus jumps by 2e-9.
    fn bound(self) -> f64 {
        // Measured 2.5e-8 (an embedding, whose rows are short: the fifth derivative), 1.3e-6.
        if self == Self::LargeStep { 4e-6 } else { 8e-8 }
    }

    fn apply(self, name: &str, w: &mut f64, rng: &mut SplitMix64) {
        // Every tensor off its symmetric start.
        *w += 0.1 * rng.normal();
        if name.ends_with("A_log") {
            *w += match self {
                Self::Mild => 0.0,
                Self::LargeStep => -4.0,
                Self::FastDecay | Self::Both => 4.0,
            };
        }
        if name.ends_with("dt_proj.bias") && matches!(self, Self::LargeStep | Self::Both) {
            *w = 20.0 + rng.normal();
        }
    }
}

/// A model and one window.
struct Setup {
    oracle: Oracle,
    batch: usize,
    dense: Vec<f32>,
    ids: Vec<u32>,
    targets: Vec<i32>,
    token_weights: Vec<f32>,
    upstream: Vec<f64>,
    reset: Option<Vec<u8>>,
    state: (Vec<f64>, Vec<f64>),
}

impl Setup {
    fn new(config: &ModelConfig, batch: usize, seq_len: usize, packed: bool, regime: Regime) -> Self {
        let weights = MambaWeights::init(config, 11).unwrap();
        let mut rng = SplitMix64::new(5, "gradcheck");
        let mut params: Vec<f64> = weights.arena().iter().map(|&w| f64::from(w)).collect();
        for p in weights.table().iter() {
            p.span.of_mut(&mut params).iter_mut().for_each(|w| regime.apply(&p.name, w, &mut rng));
        }
        let (c, tokens) = (&config.backbone, batch * seq_len);
        let mut draw = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f64>>();
        // Multiples of H, so that H more is exact.
        let dense = draw(tokens * c.input_width()).iter().map(|x| ((x / H).round() * H) as f32).collect();
        let upstream = draw(tokens * c.d_model);
        let rows = c.n_layers * batch * c.d_inner();
        let state = (draw(rows * (c.d_conv - 1)), draw(rows * c.d_state));
        let vocab = config.lm.as_ref().map_or(1, |lm| lm.vocab_size) as u32;
        let target = |i: i32| if i % 4 == 1 { -100 } else { i * 5 % vocab as i32 };
        Self {
            oracle: Oracle::new(config, params).unwrap(),
            batch,
            dense,
            ids: (0..tokens as u32).map(|i| i * 7 % vocab).collect(),
            targets: (0..tokens as i32).map(target).collect(),
            token_weights: (0..tokens).map(|i| [1.0, 0.5, 0.0, 2.0, 0.25][i % 5]).collect(),
            upstream,
            // In the middle of each row; in the second row also at its start.
            reset: packed
                .then(|| (0..tokens).map(|i| u8::from(i % seq_len == seq_len / 2 || i == seq_len)).collect()),
            state,
        }
    }

    fn trace(&self, oracle: &Oracle, dense: &[f32]) -> Trace {
        let input = match oracle.table().embedding {
            Some(_) => ModelInput::Tokens(&self.ids),
            None => ModelInput::Dense(dense),
        };
        oracle.forward(self.batch, input, self.reset.as_deref(), (&self.state.0, &self.state.1))
    }

    fn loss(&self, oracle: &Oracle, dense: &[f32]) -> f64 {
        let trace = self.trace(oracle, dense);
        match oracle.table().embedding {
            Some(_) => cross_entropy(&oracle.logits(&trace), &self.targets, Some(&self.token_weights)).nll,
            None => dot(&trace.temporal, &self.upstream),
        }
    }

    fn gradients(&self) -> Gradients {
        let trace = self.trace(&self.oracle, &self.dense);
        match self.oracle.table().embedding {
            Some(_) => self.oracle.loss_backward(&trace, &self.targets, Some(&self.token_weights), 1.0).1,
            None => self.oracle.backward(&trace, &self.upstream),
        }
    }

    /// Largest error over all tensors and the input, and its place.
    fn worst(&self) -> (f64, String) {
        let grads = self.gradients();
        let of_tensor = |p: &mamba_model::params::Param| {
            let error = worst(p.span.of(&grads.params), |i, h| {
                let mut shifted = self.oracle.clone();
                shifted.params[p.span.offset + i] += h;
                self.loss(&shifted, &self.dense)
            });
            (error, p.name.clone())
        };
        let of_input = worst(&grads.input, |i, h| {
            let mut dense = self.dense.clone();
            dense[i] += h as f32;
            self.loss(&self.oracle, &dense)
        });
        let tensors = self.oracle.table().iter().map(of_tensor);
        tensors.fold((of_input, "input".to_owned()), |w, e| if e.0 <= w.0 { w } else { e })
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Checks a configuration in all regimes, packed and not.
fn check(what: &str, config: &ModelConfig) {
    for regime in Regime::ALL {
        for packed in [false, true] {
            let (error, place) = Setup::new(config, 2, 7, packed, regime).worst();
            println!("{regime:?} packed {packed} {what}: {error:.1e} at {place}");
            assert!(error < regime.bound(), "{regime:?} packed {packed} {what}: {error:e} at {place}");
        }
    }
}

fn backbone(d_conv: usize, d_state: usize) -> MambaConfig {
    MambaConfig { d_conv, d_state, ..MambaConfig::new(5, 2).with_input_dim(3) }
}

#[test]
fn backbones_of_every_width_and_state() {
    for d_conv in 1..=8 {
        let d_state = [1, 3, 16][d_conv % 3];
        let config = ModelConfig::backbone(backbone(d_conv, d_state));
        check(&format!("d_conv {d_conv} d_state {d_state}"), &config);
    }
}

#[test]
fn options_of_the_config() {
    let options = MambaConfig {
        proj_bias: true,
        conv_bias: false,
        dt_rank: Some(3),
        rms_norm_eps: 1e-2,
        expand: 3,
        ..backbone(3, 3)
    };
    check("options", &ModelConfig::backbone(options));
    let no_projection = MambaConfig { input_dim: None, ..backbone(4, 2) };
    check("no projection", &ModelConfig::backbone(no_projection));
}

#[test]
fn language_models() {
    for tied in [true, false] {
        let lm = LmHeadConfig { vocab_size: 5, pad_vocab_size_multiple: 4, tied };
        let backbone = MambaConfig { d_state: 3, proj_bias: tied, ..MambaConfig::new(6, 2) };
        check(&format!("tied {tied}"), &ModelConfig::language_model(backbone, lm));
    }
}

/// A row of packed documents gives the outputs of each document alone, and the sum of their gradients.
#[test]
fn packed_documents_are_as_if_alone() {
    let config = ModelConfig::backbone(backbone(4, 3));
    let lengths = [1, 5, 2, 3];
    let total: usize = lengths.iter().sum();
    let Setup { oracle, dense, upstream, .. } = Setup::new(&config, 1, total, false, Regime::Mild);
    let (mut reset, mut at) = (vec![0; total], 0);
    let (mut temporal, mut d_input, mut params) = (Vec::new(), Vec::new(), vec![0.0; oracle.params.len()]);
    for len in lengths {
        reset[at] = 1;
        let trace = oracle.forward(1, ModelInput::Dense(&dense[at * 3..][..len * 3]), None, (&[], &[]));
        let grads = oracle.backward(&trace, &upstream[at * 5..][..len * 5]);
        temporal.extend(trace.temporal);
        d_input.extend(grads.input);
        params.iter_mut().zip(grads.params).for_each(|(sum, g)| *sum += g);
        at += len;
    }
    let trace = oracle.forward(1, ModelInput::Dense(&dense), Some(&reset), (&[], &[]));
    let grads = oracle.backward(&trace, &upstream);
    assert_eq!((trace.temporal, grads.input), (temporal, d_input));
    // The sums run in another order; measured 1.4e-16.
    let error = relative_error(&grads.params, &params);
    println!("sums: {error:.1e}");
    assert!(error < 2e-15, "{error:e}");
}

/// Holds the gradients of an operation's inputs against the loss that they give.
fn check_operation<const N: usize>(
    what: &str,
    names: [&str; N],
    values: &[Vec<f64>],
    grads: [Vec<f64>; N],
    loss: impl Fn(&[Vec<f64>]) -> f64,
) {
    for (k, (name, grad)) in names.iter().zip(&grads).enumerate() {
        assert_eq!(values[k].len(), grad.len(), "{what} {name}");
        let error = worst(grad, |i, h| {
            let mut shifted = values.to_vec();
            shifted[k][i] += h;
            loss(&shifted)
        });
        println!("{what} {name}: {error:.1e}");
        // Measured 1.3e-10.
        assert!(error < 4e-10, "{what} {name}: {error:e}");
    }
}

const BATCH: usize = 2;
const STEPS: usize = 6;
const CHANNELS: usize = 3;
const STATES: usize = 4;
const WIDE: usize = BATCH * STEPS * CHANNELS;

/// In the middle of the first row and at the start of the second.
const RESET: [u8; BATCH * STEPS] = [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0];

fn draws<const N: usize>(lengths: [usize; N]) -> [Vec<f64>; N] {
    let mut rng = SplitMix64::new(1, "operations");
    lengths.map(|n| (0..n).map(|_| rng.normal()).collect())
}

fn scan_of<'a>(v: &'a [Vec<f64>], gated: bool, packed: bool) -> Scan<'a> {
    Scan {
        batch: BATCH,
        seq_len: STEPS,
        channels: CHANNELS,
        states: STATES,
        u: &v[0],
        delta: &v[1],
        a: &v[2],
        b: &v[3],
        c: &v[4],
        d: &v[5],
        delta_bias: &v[6],
        h0: &v[7],
        z: gated.then_some(&v[8]),
        reset: packed.then_some(&RESET),
    }
}

#[test]
fn scan_with_a_gradient_of_the_last_state() {
    let (narrow, state) = (BATCH * STEPS * STATES, BATCH * CHANNELS * STATES);
    let lengths = [WIDE, WIDE, CHANNELS * STATES, narrow, narrow, CHANNELS, CHANNELS, state, WIDE];
    let mut values = draws(lengths);
    values[2].iter_mut().for_each(|a| *a = -a.exp());
    let [_, d_out, d_h] = draws([7, WIDE, state]);
    for (gated, packed) in [(false, false), (false, true), (true, false), (true, true)] {
        let scan = scan_of(&values, gated, packed);
        let g = scan.backward(&scan.forward(), &d_out, Some(&d_h));
        let names = ["u", "delta", "a", "b", "c", "d", "delta_bias", "h0", "z"];
        let d_z = if gated { g.z } else { vec![0.0; WIDE] };
        let grads = [g.u, g.delta, g.a, g.b, g.c, g.d, g.delta_bias, g.h0, d_z];
        check_operation(&format!("scan gated {gated} packed {packed}"), names, &values, grads, |v| {
            let out = scan_of(v, gated, packed).forward();
            dot(&out.out, &d_out) + dot(&out.h_last, &d_h)
        });
    }
}

fn conv_of<'a>(v: &'a [Vec<f64>], width: usize, packed: bool) -> Conv<'a> {
    Conv {
        batch: BATCH,
        seq_len: STEPS,
        channels: CHANNELS,
        width,
        x: &v[0],
        weight: &v[1],
        bias: Some(&v[2]),
        state: &v[3],
        reset: packed.then_some(&RESET),
    }
}

#[test]
fn convolution_with_a_gradient_of_the_state() {
    for width in 1..=8 {
        let state = BATCH * CHANNELS * (width - 1);
        let values = draws([WIDE, CHANNELS * width, CHANNELS, state]);
        let [_, d_out, d_state] = draws([7, WIDE, state]);
        for packed in [false, true] {
            let conv = conv_of(&values, width, packed);
            let g = conv.backward(&conv.forward().pre, &d_out, Some(&d_state));
            let (names, grads) = (["x", "weight", "bias", "state"], [g.x, g.weight, g.bias, g.state]);
            check_operation(&format!("conv {width} packed {packed}"), names, &values, grads, |v| {
                let out = conv_of(v, width, packed).forward();
                dot(&out.out, &d_out) + dot(&out.state, &d_state)
            });
        }
    }
}

#[test]
fn norm_and_cross_entropy() {
    let (rows, dim) = (5, 7);
    let values = draws([rows * dim, dim, rows * dim]);
    let [x, weight, d_y] = &values;
    let (_, rms) = ops::rmsnorm(x, weight, 1e-5);
    let (d_x, d_weight) = ops::rmsnorm_backward(x, weight, &rms, d_y);
    check_operation("rmsnorm", ["x", "weight"], &values[..2], [d_x, d_weight], |v| {
        dot(&ops::rmsnorm(&v[0], &v[1], 1e-5).0, d_y)
    });
    let (targets, weights) = ([3, -100, 0, 6, 2], [1.0, 5.0, 0.25, 0.0, 2.0]);
    let sums = cross_entropy(x, &targets, Some(&weights));
    assert_eq!((sums.tokens, sums.weight), (4, 3.25));
    check_operation("cross-entropy", ["logits"], &values[..1], [sums.d_logits], |v| {
        cross_entropy(&v[0], &targets, Some(&weights)).nll
    });
}
