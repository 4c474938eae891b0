//! The fast CPU engine against the oracle on odd sizes: whole backbones, language models, single operations.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::ops::{CausalConv, SelectiveScan, rmsnorm, silu_backward};
use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::oracle::Oracle;
use mamba_model::oracle::conv::Conv;
use mamba_model::oracle::scan::Scan;
use mamba_model::rng::SplitMix64;
use mamba_model::{
    LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelError, ModelInput, RecurrentState,
};
use mamba_tests::golden::relative_error;
use mamba_tests::random::{draws, pick, random_state, shaken, wide};
use mamba_tests::tolerance::{Checks, Route};
use std::collections::BTreeSet;

const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 127, 128, 129, 257];
const STATES: [usize; 8] = [1, 3, 8, 16, 17, 64, 128, 256];
const WIDTHS: [usize; 7] = [3, 5, 7, 11, 17, 33, 35];

/// One window of a random model.
#[derive(Debug)]
struct Trial {
    config: MambaConfig,
    batch: usize,
    seq_len: usize,
    packed: bool,
    /// A_log + 4, so that states forget at once, and Δ around 20, where softplus becomes the identity.
    extreme: bool,
    options: CpuOptions,
}

impl Trial {
    fn random(seq_len: usize, rng: &mut SplitMix64) -> Self {
        let mut config = MambaConfig::new(pick(rng, &WIDTHS), pick(rng, &[1, 2, 3]));
        config.d_state = pick(rng, &STATES);
        config.d_conv = pick(rng, &[1, 2, 3, 4, 5, 6, 7, 8]);
        config.expand = pick(rng, &[1, 2, 3]);
        config.dt_rank = pick(rng, &[None, Some(1), Some(5)]);
        config.conv_bias = pick(rng, &[true, false]);
        config.proj_bias = pick(rng, &[true, false]);
        config.rms_norm_eps = pick(rng, &[1e-5, 1e-6, 1e-2]);
        config.input_dim = pick(rng, &[None, Some(1), Some(6)]);
        let options =
            CpuOptions { threads: Some(pick(rng, &[1, 2, 3])), recompute: pick(rng, &[true, false]) };
        let batch = pick(rng, &[1, 2, 3]);
        Self { config, batch, seq_len, packed: pick(rng, &[true, false]), extreme: false, options }
    }

    fn check(&self, checks: &mut Checks) {
        let model_config = ModelConfig::backbone(self.config.clone());
        let mut rng = SplitMix64::new(self.seq_len as u64, "sweep");
        let mut weights = shaken(&model_config, &mut rng);
        if self.extreme {
            weights = to_extremes(&weights, &mut rng);
        }
        let tokens = self.batch * self.seq_len;
        let input = draws(&mut rng, tokens * self.config.input_width());
        let upstream = draws(&mut rng, tokens * self.config.d_model);
        let mut state = random_state(&self.config, self.batch, &mut rng);
        let reset = resets(self.packed, tokens, &mut rng);

        let oracle = Oracle::new(&model_config, wide(weights.arena())).unwrap();
        let carried = (wide(&state.conv), wide(&state.ssm));
        let dense = ModelInput::Dense(&input);
        let trace = oracle.forward(self.batch, dense, reset.as_deref(), (&carried.0, &carried.1));
        let want = oracle.backward(&trace, &wide(&upstream));

        let mut model = CpuModel::new(&model_config, self.batch, self.seq_len, &self.options).unwrap();
        model.refresh(weights.arena()).unwrap();
        model.forward(weights.arena(), dense, reset.as_deref(), &mut state).unwrap();
        let (mut grads, mut d_input) = (vec![0.0; weights.arena().len()], vec![0.0; input.len()]);
        let place = format!("{self:?}");
        let kind = if self.extreme { "sweep/extreme" } else { "sweep" };
        let mut add = |quantity: &str, place: &str, error: f64| {
            checks.add(&format!("{kind}/{quantity}"), place, error, 0.0);
        };
        add("temporal", &place, relative_error(model.temporal(), &trace.temporal));
        model.backward(weights.arena(), &upstream, &mut grads, Some(&mut d_input)).unwrap();
        add("state", &place, relative_error(&state.conv, &trace.conv_state));
        add("state", &place, relative_error(&state.ssm, &trace.ssm_state));
        add("d_input", &place, relative_error(&d_input, &want.input));
        for p in weights.table().iter() {
            let (got, want) = (p.span.of(&grads), p.span.of(&want.params));
            add("grad", &format!("{} of {place}", p.name), relative_error(got, want));
        }
    }
}

fn to_extremes(weights: &MambaWeights, rng: &mut SplitMix64) -> MambaWeights {
    let mut arena = weights.arena().to_vec();
    for p in weights.table().iter() {
        for w in p.span.of_mut(&mut arena) {
            if p.name.ends_with("A_log") {
                *w += 4.0;
            }
            if p.name.ends_with("dt_proj.bias") {
                *w = 20.0 + rng.normal() as f32;
            }
        }
    }
    MambaWeights::from_arena(weights.config(), arena).unwrap()
}

/// Document starts at about one token in six.
fn resets(packed: bool, tokens: usize, rng: &mut SplitMix64) -> Option<Vec<u8>> {
    packed.then(|| (0..tokens).map(|_| u8::from(rng.next_u64().is_multiple_of(6))).collect())
}

#[test]
fn odd_sizes_follow_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(1, "trials");
    let (mut widths, mut states, mut taps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seq_len in LENGTHS {
        for _ in 0..if seq_len < 60 { 6 } else { 3 } {
            let trial = Trial::random(seq_len, &mut rng);
            widths.insert(trial.config.d_model);
            states.insert(trial.config.d_state);
            taps.insert(trial.config.d_conv);
            trial.check(&mut checks);
        }
    }
    checks.finish();
    assert_eq!((widths.len(), states.len(), taps.len()), (WIDTHS.len(), STATES.len(), 8));
}

/// A norm over one channel gives ±weight, and its gradient is what cancellation leaves: only the forward pass is held
/// against the oracle.
#[test]
fn one_channel_runs_forward() {
    let mut rng = SplitMix64::new(6, "one channel");
    let config = ModelConfig::backbone(MambaConfig { expand: 1, ..MambaConfig::new(1, 2) });
    let weights = shaken(&config, &mut rng);
    let input = draws(&mut rng, 9);
    let oracle = Oracle::new(&config, wide(weights.arena())).unwrap();
    let trace = oracle.forward(1, ModelInput::Dense(&input), None, (&[], &[]));
    let mut model = CpuModel::new(&config, 1, 9, &CpuOptions::default()).unwrap();
    model.refresh(weights.arena()).unwrap();
    let mut state = RecurrentState::zeros(&config.backbone, 1);
    model.forward(weights.arena(), ModelInput::Dense(&input), None, &mut state).unwrap();
    let mut checks = Checks::new(Route::Cpu);
    checks.add("sweep/temporal", "one channel", relative_error(model.temporal(), &trace.temporal), 0.0);
    checks.add("sweep/state", "one channel", relative_error(&state.ssm, &trace.ssm_state), 0.0);
    checks.finish();
    let mut grads = vec![0.0; weights.arena().len()];
    model.backward(weights.arena(), &[1.0; 9], &mut grads, None).unwrap();
    assert!(grads.iter().all(|g| g.is_finite()));
}

#[test]
fn extreme_weights_follow_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(7, "trials");
    for seq_len in LENGTHS {
        Trial { extreme: true, ..Trial::random(seq_len, &mut rng) }.check(&mut checks);
    }
    checks.finish();
}

#[test]
#[ignore = "all pairs of length, width of the convolution and number of states: 13 s"]
fn all_sizes_follow_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(2, "trials");
    for seq_len in LENGTHS {
        for d_conv in 1..=8 {
            for d_state in STATES {
                let mut trial = Trial::random(seq_len, &mut rng);
                (trial.config.d_conv, trial.config.d_state) = (d_conv, d_state);
                trial.check(&mut checks);
            }
        }
    }
    checks.finish();
}

#[test]
fn language_models_follow_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(3, "language models");
    for (i, (vocab, multiple)) in
        [(1, 1), (2, 8), (5, 4), (63, 1), (65, 2), (130, 64)].into_iter().enumerate()
    {
        for tied in [true, false] {
            let lm = LmHeadConfig { vocab_size: vocab, pad_vocab_size_multiple: multiple, tied };
            let backbone = MambaConfig { d_state: 5, ..MambaConfig::new(WIDTHS[i + 1], 2) };
            let config = ModelConfig::language_model(backbone, lm);
            check_language_model(&mut checks, &config, (i % 3 + 1, [9, 65, 7][i % 3]), &mut rng);
        }
    }
    checks.finish();
}

fn check_language_model(
    checks: &mut Checks,
    config: &ModelConfig,
    (batch, seq_len): (usize, usize),
    rng: &mut SplitMix64,
) {
    let (weights, tokens) = (shaken(config, rng), batch * seq_len);
    let lm = config.lm.as_ref().unwrap();
    let id = |rng: &mut SplitMix64| (rng.next_u64() % lm.vocab_size as u64) as u32;
    let ids: Vec<u32> = (0..tokens).map(|_| id(rng)).collect();
    let targets: Vec<i32> = (0..tokens).map(|i| if i % 5 == 2 { -100 } else { id(rng) as i32 }).collect();
    let token_weights: Vec<f32> = (0..tokens).map(|_| pick(rng, &[0.0, 0.25, 1.0, 3.0])).collect();
    let reset = resets(true, tokens, rng);
    let input = ModelInput::Tokens(&ids);

    let oracle = Oracle::new(config, wide(weights.arena())).unwrap();
    let trace = oracle.forward(batch, input, reset.as_deref(), (&[], &[]));
    let mut model = CpuModel::new(config, batch, seq_len, &CpuOptions::default()).unwrap();
    model.refresh(weights.arena()).unwrap();
    for given in [None, Some(token_weights.as_slice())] {
        let (want, want_grads) = oracle.loss_backward(&trace, &targets, given, 0.125);
        let mut state = RecurrentState::zeros(&config.backbone, batch);
        model.forward(weights.arena(), input, reset.as_deref(), &mut state).unwrap();
        let want_logits = oracle.logits(&trace);
        let mut logits = vec![0.0; want_logits.len()];
        model.logits(weights.arena(), &mut logits).unwrap();
        let only_loss = model.loss(weights.arena(), &targets, given).unwrap();
        let mut grads = vec![0.0; weights.arena().len()];
        let sums = model.loss_backward(weights.arena(), &targets, given, 0.125, &mut grads).unwrap();
        assert_eq!(sums, only_loss);
        assert_eq!((sums.tokens, sums.weight), (want.tokens, want.weight));
        let place = format!("{lm:?}");
        checks.add("sweep/lm/logits", &place, relative_error(&logits, &want_logits), 0.0);
        checks.add("sweep/lm/loss", &place, relative_error(&[sums.nll], &[want.nll]), 0.0);
        for p in weights.table().iter() {
            let error = relative_error(p.span.of(&grads), p.span.of(&want_grads.params));
            checks.add("sweep/lm/grad", &format!("{place} {}", p.name), error, 0.0);
        }
    }
}

#[test]
fn scan_alone_follows_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(4, "scan");
    for (i, channels) in [1, 15, 16, 17, 63, 64, 65, 130].into_iter().enumerate() {
        let (batch, seq_len, states) = (i % 3 + 1, [1, 15, 16, 17, 33, 70, 5, 40][i], STATES[(i * 3) % 8]);
        let (dense, narrow) = (batch * seq_len * channels, batch * seq_len * states);
        let a = draws(&mut rng, channels * states).iter().map(|v| -v.exp()).collect();
        let lengths =
            [dense, dense, dense, narrow, narrow, channels, channels, batch * channels * states, dense];
        let [u, delta, z, b, c, d, delta_bias, h0, d_out] = lengths.map(|n| draws(&mut rng, n));
        let values: [Vec<f32>; 10] = [u, delta, a, b, c, d, delta_bias, z, h0, d_out];
        let exact = values.each_ref().map(|v| wide(v));
        let reset = resets(true, batch * seq_len, &mut rng);
        let reset = reset.as_deref();
        let [u, delta, a, b, c, d, delta_bias, z, h0, d_out] = &values;
        let scan = SelectiveScan {
            batch,
            seq_len,
            channels,
            states,
            u,
            delta,
            a,
            b,
            c,
            d,
            delta_bias,
            z,
            h0,
            reset,
        };
        let (out, g) = (scan.forward().unwrap(), scan.backward(d_out).unwrap());
        let [u, delta, a, b, c, d, delta_bias, z, h0, d_out] = &exact;
        let z = Some(z.as_slice());
        let scan = Scan { batch, seq_len, channels, states, u, delta, a, b, c, d, delta_bias, z, h0, reset };
        let want = scan.forward();
        let w = scan.backward(&want, d_out, None);
        let pairs = [
            (&out.out, &want.out),
            (&out.h_last, &want.h_last),
            (&g.u, &w.u),
            (&g.delta, &w.delta),
            (&g.a, &w.a),
            (&g.b, &w.b),
            (&g.c, &w.c),
            (&g.d, &w.d),
            (&g.delta_bias, &w.delta_bias),
            (&g.z, &w.z),
        ];
        for (k, (got, want)) in pairs.into_iter().enumerate() {
            checks.add("sweep/scan", &format!("{channels} channels, {k}"), relative_error(got, want), 0.0);
        }
    }
    checks.finish();
}

#[test]
fn convolution_alone_follows_the_oracle() {
    let mut checks = Checks::new(Route::Cpu);
    let mut rng = SplitMix64::new(5, "conv");
    for (i, channels) in [1, 15, 16, 17, 63, 64, 65, 130].into_iter().enumerate() {
        for (width, biased) in [(1, true), (i + 1, false), (4, true), (32, true)] {
            let (batch, seq_len) = (i % 3 + 1, [1, 2, 63, 64, 65, 129, 5, 40][i]);
            let lengths = [channels * width, channels, batch * channels * (width - 1)];
            let [x, d_out] = [(); 2].map(|()| draws(&mut rng, batch * seq_len * channels));
            let [weight, bias, state] = lengths.map(|n| draws(&mut rng, n));
            let reset = resets(i % 2 == 0, batch * seq_len, &mut rng);
            let reset = reset.as_deref();
            let exact = [&x, &weight, &bias, &state, &d_out].map(|v| wide(v));
            let conv = CausalConv {
                batch,
                seq_len,
                channels,
                width,
                x: &x,
                weight: &weight,
                bias: biased.then_some(&bias),
                state: &state,
                reset,
            };
            let (out, g) = (conv.forward().unwrap(), conv.backward(&d_out).unwrap());
            let [x, weight, bias, state, d_out] = &exact;
            let bias = biased.then_some(bias.as_slice());
            let conv = Conv { batch, seq_len, channels, width, x, weight, bias, state, reset };
            let want = conv.forward();
            let w = conv.backward(&want.pre, d_out, None);
            assert_eq!(wide(&out.state), want.state, "{channels} channels, {width} taps");
            let pairs = [(&out.out, &want.out), (&g.x, &w.x), (&g.weight, &w.weight), (&g.bias, &w.bias)];
            for (k, (got, want)) in pairs.into_iter().enumerate() {
                let place = format!("{channels} channels, {width} taps, {k}");
                checks.add("sweep/conv", &place, relative_error(got, want), 0.0);
            }
        }
    }
    checks.finish();
}

#[test]
fn operations_refuse_wrong_sizes() {
    let x = [0.0; 12];
    let conv = CausalConv {
        batch: 1,
        seq_len: 4,
        channels: 3,
        width: 2,
        x: &x,
        weight: &x[..6],
        bias: None,
        state: &x[..3],
        reset: None,
    };
    assert!(conv.forward().is_ok());
    let length = |name: &str, e: Option<ModelError>| match e {
        Some(ModelError::Length { name: got, .. }) => assert_eq!(got, name),
        other => panic!("{name}: {other:?}"),
    };
    length("x", CausalConv { x: &x[1..], ..conv }.forward().err());
    length("weight", CausalConv { weight: &x, ..conv }.forward().err());
    length("bias", CausalConv { bias: Some(&x), ..conv }.forward().err());
    length("state", CausalConv { state: &[], ..conv }.forward().err());
    length("reset", CausalConv { reset: Some(&[0]), ..conv }.forward().err());
    length("d_out", conv.backward(&x[1..]).err());
    for (field, conv) in [
        ("batch", CausalConv { batch: 0, ..conv }),
        ("seq_len", CausalConv { seq_len: 0, ..conv }),
        ("d_conv", CausalConv { width: 0, ..conv }),
        ("d_model", CausalConv { channels: 0, ..conv }),
    ] {
        match conv.forward() {
            Err(ModelError::Config { field: got, .. }) => assert_eq!(got, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    length("x", rmsnorm(&x[..5], &x[..3], 1e-5).err());
    length("weight", rmsnorm(&[], &[], 1e-5).err());
    length("d_y", silu_backward(&x, &x[1..]).err());
}
