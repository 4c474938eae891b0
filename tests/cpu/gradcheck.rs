//! The oracle's gradients against central differences, tensor by tensor, in a mild and in an extreme regime.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::oracle::{Gradients, Oracle, Trace};
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput};

struct Setup {
    oracle: Oracle,
    batch: usize,
    dense: Vec<f32>,
    ids: Vec<u32>,
    targets: Vec<i32>,
    upstream: Vec<f64>,
    reset: Option<Vec<u8>>,
    state: (Vec<f64>, Vec<f64>),
}

impl Setup {
    fn new(config: &ModelConfig, batch: usize, seq_len: usize, packed: bool, extreme: bool) -> Self {
        let weights = MambaWeights::init(config, 11).unwrap();
        let mut rng = SplitMix64::new(5, "gradcheck");
        let mut params: Vec<f64> = weights.arena().iter().map(|&w| f64::from(w)).collect();
        for p in weights.table().iter() {
            for w in p.span.of_mut(&mut params) {
                // Every tensor off its symmetric start; in the extreme regime fast decays and Δ around the threshold.
                *w += 0.1 * rng.normal();
                if extreme && p.name.ends_with("A_log") {
                    *w += 4.0;
                }
                if extreme && p.name.ends_with("dt_proj.bias") {
                    *w = 20.0 + rng.normal();
                }
            }
        }
        let c = &config.backbone;
        let tokens = batch * seq_len;
        let mut draw = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f64>>();
        let dense = draw(tokens * c.input_width()).iter().map(|&x| x as f32).collect();
        let upstream = draw(tokens * c.d_model);
        let rows = c.n_layers * batch * c.d_inner();
        let state = (draw(rows * (c.d_conv - 1)), draw(rows * c.d_state));
        let vocab = config.lm.as_ref().map_or(1, |lm| lm.vocab_size) as u32;
        let ids = (0..tokens as u32).map(|i| i * 7 % vocab).collect();
        let targets =
            (0..tokens as i32).map(|i| if i % 4 == 1 { -100 } else { i * 5 % vocab as i32 }).collect();
        let reset = packed.then(|| (0..tokens).map(|i| u8::from(i % seq_len == seq_len / 2)).collect());
        Self {
            oracle: Oracle::new(config, params).unwrap(),
            batch,
            dense,
            ids,
            targets,
            upstream,
            reset,
            state,
        }
    }

    fn trace(&self, oracle: &Oracle) -> Trace {
        let input = match oracle.table().embedding {
            Some(_) => ModelInput::Tokens(&self.ids),
            None => ModelInput::Dense(&self.dense),
        };
        oracle.forward(self.batch, input, self.reset.as_deref(), (&self.state.0, &self.state.1))
    }

    fn loss(&self, oracle: &Oracle) -> f64 {
        let trace = self.trace(oracle);
        match oracle.table().embedding {
            Some(_) => mamba_model::oracle::cross_entropy(&oracle.logits(&trace), &self.targets, None).nll,
            None => trace.temporal.iter().zip(&self.upstream).map(|(t, d)| t * d).sum(),
        }
    }

    fn gradients(&self) -> Gradients {
        let trace = self.trace(&self.oracle);
        match self.oracle.table().embedding {
            Some(_) => self.oracle.loss_backward(&trace, &self.targets, None, 1.0).1,
            None => self.oracle.backward(&trace, &self.upstream),
        }
    }

    /// Largest difference from central differences, over a few elements of every tensor, relative to the tensor's
    /// largest gradient.
    fn worst(&self) -> (f64, String) {
        let grads = self.gradients();
        let mut worst = (0.0, String::new());
        for p in self.oracle.table().iter() {
            let analytic = p.span.of(&grads.params);
            let scale = analytic.iter().fold(1e-6f64, |m, g| m.max(g.abs()));
            for k in 0..4.min(p.span.len) {
                let i = p.span.offset + k * (p.span.len - 1) / 3.min(p.span.len).max(1);
                let mut shifted = self.oracle.clone();
                let h = 1e-5 * shifted.params[i].abs().max(1.0);
                let at = |shifted: &mut Oracle, x: f64| {
                    shifted.params[i] = x;
                    self.loss(shifted)
                };
                let center = self.oracle.params[i];
                let numeric = (at(&mut shifted, center + h) - at(&mut shifted, center - h)) / (2.0 * h);
                let error = (numeric - grads.params[i]).abs() / scale;
                if error > worst.0 || error.is_nan() {
                    worst = (error, format!("{} [{i}]", p.name));
                }
            }
        }
        worst
    }
}

fn check(what: &str, config: &ModelConfig, packed: bool, extreme: bool) {
    let (error, place) = Setup::new(config, 2, 7, packed, extreme).worst();
    println!("{what} packed {packed} extreme {extreme}: {error:.1e} at {place}");
    // Central differences with h = 1e-5 leave about 1e-9 of the loss, more where a gradient is small; measured at most 1.9e-6.
    assert!(error < 5e-6, "{what} packed {packed} extreme {extreme}: {error:e} at {place}");
}

fn backbone(d_conv: usize, d_state: usize) -> MambaConfig {
    MambaConfig { d_conv, d_state, ..MambaConfig::new(6, 2).with_input_dim(3) }
}

#[test]
fn backbones_of_every_width_and_state() {
    for d_conv in 1..=8 {
        let d_state = [1, 3, 16][d_conv % 3];
        for packed in [false, true] {
            check(
                &format!("d_conv {d_conv} d_state {d_state}"),
                &ModelConfig::backbone(backbone(d_conv, d_state)),
                packed,
                false,
            );
        }
    }
}

#[test]
fn extreme_regime() {
    for packed in [false, true] {
        check("extreme", &ModelConfig::backbone(backbone(4, 3)), packed, true);
    }
}

#[test]
fn options_of_the_config() {
    let options = MambaConfig {
        proj_bias: true,
        conv_bias: false,
        dt_rank: Some(3),
        rms_norm_eps: 1e-2,
        ..backbone(3, 3)
    };
    check("proj_bias, no conv_bias", &ModelConfig::backbone(options), true, false);
    let no_projection = MambaConfig { input_dim: None, ..backbone(4, 2) };
    check("no projection", &ModelConfig::backbone(no_projection), false, false);
}

#[test]
fn language_models() {
    for tied in [true, false] {
        let lm = LmHeadConfig { vocab_size: 5, pad_vocab_size_multiple: 4, tied };
        let config = ModelConfig::language_model(MambaConfig { d_state: 3, ..MambaConfig::new(6, 2) }, lm);
        check(&format!("tied {tied}"), &config, true, false);
    }
}

#[test]
fn gradient_of_the_input() {
    let setup = Setup::new(&ModelConfig::backbone(backbone(4, 3)), 1, 5, false, false);
    let grads = setup.gradients();
    for i in 0..setup.dense.len() {
        let shifted = |h: f32| {
            let mut other = Setup::new(&ModelConfig::backbone(backbone(4, 3)), 1, 5, false, false);
            other.dense[i] += h;
            (f64::from(other.dense[i]), other.loss(&other.oracle))
        };
        let ((x1, up), (x0, down)) = (shifted(1e-3), shifted(-1e-3));
        let numeric = (up - down) / (x1 - x0);
        // h = 1e-3, since the input is f32: the third derivative leaves about 1e-6.
        assert!((numeric - grads.input[i]).abs() < 2e-5, "{i}: {numeric} != {}", grads.input[i]);
    }
}
