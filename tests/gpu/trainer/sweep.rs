//! Random backbones and language models of odd sizes against the f64 oracle, with packing and carried states.

use super::DTYPES;
use super::golden::{scaler, unscaled};
use crate::support::Test;
use mamba_model::oracle::Oracle;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput};
use mamba_tests::golden::relative_error;
use mamba_tests::random::{draws, pick, random_state, shaken, wide};
use mamba_tests::tolerance::{Checks, Route};
use mamba_trainer::{
    BackwardOpts, Device, LmTrainer, MambaTrainer, TokenBatch, TrainSessionCfg, WeightDtype,
};

const LENGTHS: [usize; 22] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 2047, 2048, 2049];
const STATES: [usize; 8] = [1, 3, 8, 16, 17, 64, 128, 256];
const WIDTHS: [usize; 8] = [3, 5, 7, 11, 16, 17, 32, 35];

/// (name, test) of the sweep.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, route) in DTYPES {
        all.push((format!("sweep/{dtype}/lengths"), Box::new(move |_| lengths(dtype, route))));
        all.push((format!("sweep/{dtype}/states"), Box::new(move |_| states(dtype, route))));
        all.push((format!("sweep/{dtype}/extreme"), Box::new(move |_| extreme(dtype, route))));
        all.push((format!("sweep/{dtype}/lm"), Box::new(move |_| language_models(dtype, route))));
    }
    all
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// One window of a random model.
#[derive(Debug)]
struct Trial {
    config: MambaConfig,
    batch: usize,
    seq_len: usize,
    packed: bool,
    /// A_log + 4, so that states forget at once, and Δ around 20, where softplus becomes the identity.
    extreme: bool,
    recompute: bool,
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
        let (batch, packed) = (pick(rng, &[1, 2, 3]), pick(rng, &[true, false]));
        Self { config, batch, seq_len, packed, extreme: false, recompute: pick(rng, &[true, false]) }
    }

    fn check(&self, checks: &mut Checks, dtype: WeightDtype) -> Result<(), String> {
        let model = ModelConfig::backbone(self.config.clone());
        let mut rng = SplitMix64::new(self.seq_len as u64, "gpu sweep");
        let mut weights = shaken(&model, &mut rng);
        if self.extreme {
            weights = to_extremes(&weights, &mut rng);
        }
        let tokens = self.batch * self.seq_len;
        let input = draws(&mut rng, tokens * self.config.input_width());
        let upstream = draws(&mut rng, tokens * self.config.d_model);
        let state = random_state(&self.config, self.batch, &mut rng);
        let reset = resets(self.packed, tokens, &mut rng);

        let oracle = Oracle::new(&model, wide(weights.arena())).map_err(text)?;
        let carried = (wide(&state.conv), wide(&state.ssm));
        let dense = ModelInput::Dense(&input);
        let trace = oracle.forward(self.batch, dense, reset.as_deref(), (&carried.0, &carried.1));
        let want = oracle.backward(&trace, &wide(&upstream));

        let session = TrainSessionCfg::new(self.config.input_width(), self.batch, self.seq_len);
        let builder = MambaTrainer::builder(weights, session).device(Device::Cuda(0)).dtype(dtype);
        let builder = builder.input_gradient(true).recompute(self.recompute).scaler(scaler());
        let mut trainer = builder.build().map_err(text)?;
        trainer.load_recurrent_state(&state).map_err(text)?;
        let mut temporal = vec![0.0; upstream.len()];
        trainer.forward_packed(&input, reset.as_deref(), &mut temporal).map_err(text)?;
        let opts = BackwardOpts::new().with_accumulate_only(true);
        let scale = trainer.backward_step(&upstream, opts).map_err(text)?.loss_scale;
        let after = trainer.recurrent_state().map_err(text)?;
        let d_input = trainer.input_gradient().map_err(text)?.into_owned();
        let grads = unscaled(&trainer.grad_arena().map_err(text)?, scale);

        let place = format!("{self:?}");
        let kind = if self.extreme { "sweep/extreme" } else { "sweep" };
        let mut add = |quantity: &str, got: &[f32], want: &[f64]| {
            checks.add(&format!("{kind}/{quantity}"), &place, relative_error(got, want), 0.0);
        };
        add("temporal", &temporal, &trace.temporal);
        add("state", &after.conv, &trace.conv_state);
        add("state", &after.ssm, &trace.ssm_state);
        add("d_input", &d_input, &want.input);
        for p in oracle.table().iter() {
            let last = p.name.rsplit_once('.').map_or(p.name.as_str(), |(_, last)| last);
            add(&format!("grad/{last}"), p.span.of(&grads), p.span.of(&want.params));
        }
        Ok(())
    }
}

fn to_extremes(weights: &MambaWeights, rng: &mut SplitMix64) -> MambaWeights {
    let mut out = weights.clone();
    for p in weights.table().iter() {
        let mut values = p.span.of(weights.arena()).to_vec();
        match p.name.rsplit_once('.').map_or("", |(_, last)| last) {
            "A_log" => values.iter_mut().for_each(|a| *a += 4.0),
            "bias" if p.name.contains("dt_proj") => {
                values.iter_mut().for_each(|b| *b = 20.0 + 0.5 * rng.normal() as f32);
            }
            _ => continue,
        }
        let _ = out.set(&p.name, &values);
    }
    out
}

fn resets(packed: bool, tokens: usize, rng: &mut SplitMix64) -> Option<Vec<u8>> {
    packed.then(|| (0..tokens).map(|_| u8::from(rng.next_u64().is_multiple_of(5))).collect())
}

fn lengths(dtype: WeightDtype, route: Route) -> Result<(), String> {
    let mut checks = Checks::new(route);
    let mut rng = SplitMix64::new(3, "gpu sweep lengths");
    for seq_len in LENGTHS {
        Trial::random(seq_len, &mut rng).check(&mut checks, dtype)?;
    }
    checks.finish();
    Ok(())
}

fn states(dtype: WeightDtype, route: Route) -> Result<(), String> {
    let mut checks = Checks::new(route);
    let mut rng = SplitMix64::new(4, "gpu sweep states");
    for (i, d_state) in STATES.into_iter().enumerate() {
        for seq_len in [1 + i, 33 + i] {
            let mut trial = Trial::random(seq_len, &mut rng);
            trial.config.d_state = d_state;
            trial.config.d_conv = 1 + i;
            trial.check(&mut checks, dtype)?;
        }
    }
    checks.finish();
    Ok(())
}

fn extreme(dtype: WeightDtype, route: Route) -> Result<(), String> {
    let mut checks = Checks::new(route);
    let mut rng = SplitMix64::new(5, "gpu sweep extreme");
    for seq_len in [1, 7, 33, 70] {
        let mut trial = Trial::random(seq_len, &mut rng);
        trial.extreme = true;
        trial.check(&mut checks, dtype)?;
    }
    checks.finish();
    Ok(())
}

/// Tied and untied heads, padded vocabularies, ignored targets, token weights.
fn language_models(dtype: WeightDtype, route: Route) -> Result<(), String> {
    let mut checks = Checks::new(route);
    let mut rng = SplitMix64::new(6, "gpu sweep lm");
    for (i, vocab_size) in [2usize, 17, 256, 1031, 17_000].into_iter().enumerate() {
        let head = LmHeadConfig {
            tied: i % 2 == 0,
            pad_vocab_size_multiple: pick(&mut rng, &[1, 8]),
            ..LmHeadConfig::new(vocab_size)
        };
        let (batch, seq_len) = (1 + i % 3, pick(&mut rng, &[1, 9, 40]));
        let config = ModelConfig::language_model(MambaConfig::new(pick(&mut rng, &WIDTHS), 1 + i % 2), head);
        let weights = shaken(&config, &mut rng);
        let mut draw = |n: usize| (0..n).map(|_| rng.next_u64() % vocab_size as u64).collect::<Vec<_>>();
        let inputs: Vec<u32> = draw(batch * seq_len).iter().map(|&t| t as u32).collect();
        let targets = draw(batch * seq_len).into_iter().enumerate();
        let targets: Vec<i32> = targets.map(|(j, t)| if j % 4 == 1 { -100 } else { t as i32 }).collect();
        let token_weights: Vec<f32> = (0..targets.len()).map(|j| 0.25 + (j % 3) as f32).collect();

        let oracle = Oracle::new(&config, wide(weights.arena())).map_err(text)?;
        let trace = oracle.forward(batch, ModelInput::Tokens(&inputs), None, (&[], &[]));
        let (sums, want) = oracle.loss_backward(&trace, &targets, Some(&token_weights), 1.0);

        let builder = LmTrainer::builder(weights, batch, seq_len).device(Device::Cuda(0)).dtype(dtype);
        let mut trainer = builder.scaler(scaler()).build().map_err(text)?;
        let tokens = TokenBatch { weights: Some(&token_weights), ..TokenBatch::new(&inputs, &targets) };
        let place = format!("vocabulary {vocab_size}");
        let loss = trainer.evaluate(&tokens).map_err(text)?.mean();
        checks.add("sweep/lm/loss", &place, relative_error(&[loss], &[sums.nll / sums.weight]), 0.0);
        trainer.accumulate(&tokens).map_err(text)?;
        let scale = trainer.scaler_state().map_err(text)?.map_or(1.0, |s| s.scale);
        let grads = unscaled(&trainer.grad_arena().map_err(text)?, scale);
        for p in oracle.table().iter() {
            let error = relative_error(p.span.of(&grads), p.span.of(&want.params));
            checks.add("sweep/lm/grad", &format!("{place}, {}", p.name), error, 0.0);
        }
    }
    checks.finish();
    Ok(())
}
