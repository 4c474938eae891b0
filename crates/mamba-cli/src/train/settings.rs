//! Everything about a training that decides its result; part of a run's config.

use crate::args::{ScheduleName, TrainArgs};
use crate::error::{CliError, Result, at_least_one};
use mamba_optim::{AdamWConfig, DecayShape, OptimError, Schedule, ScheduleKind};
use mamba_trainer::{Device, GemmMode, StepOpts, WeightDtype};
use serde::{Deserialize, Serialize};

/// Everything about a training that decides its result, its reports and its checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSettings {
    /// Sequences a micro-batch.
    pub batch: usize,
    /// Tokens a sequence.
    pub seq_len: usize,
    /// Micro-batches a step.
    pub accumulate: usize,
    /// Steps of the whole training.
    pub steps: u64,
    /// Base rate, decay, betas, epsilon.
    pub adamw: AdamWConfig,
    /// Course of the rate.
    pub schedule: Schedule,
    /// Clip and skip.
    pub step_opts: StepOpts,
    /// Seed of weights, data order and sample.
    pub seed: u64,
    /// Whether the recurrence is carried from window to window.
    pub stateful: bool,
    /// Storage of the bulk weights.
    pub dtype: WeightDtype,
    /// Matrix products.
    pub gemm: GemmMode,
    /// Whether activations are recomputed.
    pub recompute: bool,
    /// Steps between validations; 0: only at the end.
    pub eval_every: u64,
    /// Batches of a validation.
    pub eval_batches: usize,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Steps between logged lines.
    pub log_every: u64,
    /// Tokens of the sample at the end.
    pub sample_tokens: usize,
    /// Begin of the sample.
    pub prompt: Option<String>,
}

impl TrainSettings {
    /// The settings of the flags, checked.
    pub fn from_args(args: &TrainArgs) -> Result<Self> {
        let TrainArgs { schedule: s, optimizer: o, machine: m, reports: r, .. } = args;
        at_least_one("--steps", s.steps)?;
        let mut step_opts = StepOpts::new();
        if o.clip != 0.0 {
            step_opts.clip_max_norm = Some(threshold("--clip", o.clip, "finite and above 0, or 0 for none")?);
        }
        if let Some(norm) = o.skip_above {
            step_opts.step_skip_above = Some(threshold("--skip-above", norm, "finite and above 0")?);
        }
        if let Some(z_score) = o.skip_z_score {
            step_opts.skip_z_score = Some(threshold("--skip-z-score", z_score, "finite and above 0")?);
        }
        let settings = Self {
            batch: s.batch,
            seq_len: s.seq_len,
            accumulate: s.accumulate,
            steps: s.steps,
            adamw: adamw(args).map_err(CliError::of_optimizer)?,
            schedule: schedule(args)?,
            step_opts,
            seed: s.seed,
            stateful: s.stateful,
            dtype: m.dtype.unwrap_or(default_dtype(m.device)),
            gemm: m.gemm,
            recompute: m.recompute,
            eval_every: r.eval_every,
            eval_batches: r.eval_batches,
            save_every: r.save_every,
            log_every: r.log_every,
            sample_tokens: r.sample_tokens,
            prompt: r.prompt.clone(),
        };
        settings.validate()?;
        Ok(settings)
    }

    /// Checks what the types leave open.
    pub fn validate(&self) -> Result<()> {
        at_least_one("--batch", self.batch)?;
        at_least_one("--seq-len", self.seq_len)?;
        at_least_one("--accumulate", self.accumulate)?;
        at_least_one("--steps", self.steps)?;
        at_least_one("--eval-batches", self.eval_batches)?;
        at_least_one("--log-every", self.log_every)?;
        let tokens = self.batch.checked_mul(self.seq_len).and_then(|n| n.checked_mul(self.accumulate));
        if tokens.is_none_or(|n| n > MAX_TOKENS) {
            return Err(CliError::Flag {
                flag: "--batch · --seq-len · --accumulate",
                value: format!("{} · {} · {}", self.batch, self.seq_len, self.accumulate),
                expected: "at most 2^32 tokens together",
            });
        }
        Ok(self.step_opts.validate()?)
    }

    /// Tokens of one step.
    pub fn tokens_per_step(&self) -> u64 {
        (self.batch * self.seq_len * self.accumulate) as u64
    }
}

/// Largest step, in tokens.
const MAX_TOKENS: usize = 1 << 32;

/// f32 on the CPU, bf16 on a GPU.
pub fn default_dtype(device: Device) -> WeightDtype {
    match device {
        Device::Cpu => WeightDtype::F32,
        Device::Cuda(_) => WeightDtype::Bf16,
    }
}

fn threshold(flag: &'static str, value: f64, expected: &'static str) -> Result<f64> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(CliError::Flag { flag, value: value.to_string(), expected }),
    }
}

fn share(flag: &'static str, value: f64) -> Result<f64> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(CliError::Flag { flag, value: value.to_string(), expected: "between 0 and 1" }),
    }
}

fn adamw(args: &TrainArgs) -> std::result::Result<AdamWConfig, OptimError> {
    let o = &args.optimizer;
    AdamWConfig::default()
        .with_lr(args.schedule.lr)?
        .with_weight_decay(o.weight_decay)?
        .with_betas(o.beta1, o.beta2)?
        .with_eps(o.eps)
}

fn schedule(args: &TrainArgs) -> Result<Schedule> {
    let s = &args.schedule;
    let min_factor = share("--min-lr-factor", s.min_lr_factor)?;
    let decay_share = share("--decay-share", s.decay_share)?;
    let warmup = s.warmup.unwrap_or((s.steps / 10).min(100));
    if warmup >= s.steps && s.schedule != ScheduleName::Constant {
        let value = warmup.to_string();
        return Err(CliError::Flag { flag: "--warmup", value, expected: "less than --steps" });
    }
    let wsd = |decay: u64| ScheduleKind::Wsd {
        warmup,
        stable: s.steps - warmup - decay,
        decay,
        min_factor,
        shape: DecayShape::Linear,
    };
    let rest = s.steps.saturating_sub(warmup);
    Ok(Schedule::new(match s.schedule {
        ScheduleName::Constant if warmup == 0 => ScheduleKind::Constant,
        ScheduleName::Constant => ScheduleKind::LinearWarmup { warmup },
        ScheduleName::Linear => wsd(rest),
        ScheduleName::Cosine => ScheduleKind::Cosine { warmup, total: s.steps, min_factor },
        ScheduleName::Wsd => wsd(((s.steps as f64 * decay_share).round() as u64).clamp(1, rest)),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

    fn settings(extra: &str) -> Result<TrainSettings> {
        let line = format!("mamba train --data x {extra}");
        match Cli::read(line.split_whitespace()).unwrap().command {
            Command::Train(args) => TrainSettings::from_args(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn schedules_end_where_they_should() {
        let factor = |extra: &str, step| settings(extra).unwrap().schedule.factor(step);
        let base = "--steps 100 --warmup 10 --min-lr-factor 0.5 --schedule";
        for name in ["linear", "cosine", "wsd"] {
            let extra = format!("{base} {name}");
            assert_eq!(
                (factor(&extra, 0), factor(&extra, 9), factor(&extra, 100)),
                (0.1, 1.0, 0.5),
                "{name}"
            );
        }
        assert_eq!(factor(&format!("{base} linear"), 55), 0.75);
        // The last 20 of 100 steps decay.
        assert_eq!((factor(&format!("{base} wsd"), 79), factor(&format!("{base} wsd"), 90)), (1.0, 0.75));
        assert_eq!(factor(&format!("{base} constant"), 100), 1.0);
        assert_eq!(factor("--steps 1", 0), 1.0);
    }

    #[test]
    fn bad_values_name_their_flag() {
        for (flag, extra) in [
            ("--batch", "--batch 0"),
            ("--seq-len", "--seq-len 0"),
            ("--accumulate", "--accumulate 0"),
            ("`--steps` is 0;", "--steps 0"),
            ("--log-every", "--log-every 0"),
            ("--eval-batches", "--eval-batches 0"),
            ("--batch", "--batch 4294967296 --seq-len 4294967296"),
            ("`--lr` is 0; it must be finite and above 0", "--lr 0"),
            ("--lr", "--lr NaN"),
            ("`--lr` is -1;", "--lr -1"),
            ("--lr", "--lr 1e-60"),
            ("--weight-decay", "--weight-decay -1"),
            ("`--beta1` is 1; it must be at least 0 and below 1", "--beta1 1"),
            ("--beta2", "--beta2 1.5"),
            ("--eps", "--eps 0"),
            ("`--clip` is -3;", "--clip -3"),
            ("--clip", "--clip inf"),
            ("--skip-above", "--skip-above 0"),
            ("--skip-z-score", "--skip-z-score 0"),
            ("--skip-z-score", "--skip-z-score NaN"),
            ("--min-lr-factor", "--min-lr-factor 2"),
            ("--decay-share", "--decay-share NaN"),
            ("--warmup", "--warmup 100 --steps 100"),
        ] {
            let error = settings(extra).unwrap_err();
            assert!(error.to_string().contains(flag), "{extra}: {error}");
            assert_eq!(error.exit_code(), 2, "{extra}");
        }
        assert_eq!(settings("--clip 0").unwrap().step_opts.clip_max_norm, None);
        let skips = settings("--skip-above 9 --skip-z-score 6").unwrap().step_opts;
        assert_eq!((skips.step_skip_above, skips.skip_z_score), (Some(9.0), Some(6.0)));
    }
}
