//! The training loop with its reports and checkpoints.

use super::settings::TrainSettings;
use super::stop::Stop;
use crate::data::{Batch, Corpus, Position, TrainBatches};
use crate::error::{CliError, Result};
use crate::generate;
use crate::plot;
use crate::report::{Progress, print_line, printable, thousands};
use crate::run_folder::{Metrics, Record, RunConfig, RunFolder, Summary};
use crate::sampling::{Sampler, Sampling};
use crate::tensorboard::EventWriter;
use crate::weights;
use mamba_model::ModelError;
use mamba_optim::OptimError;
use mamba_trainer::{Decoder, Device, LmStepMetrics, LmTrainer, LossSums, TrainerError, Verdict};
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// The validation at the end takes this many times the batches of the others.
const FINAL_FACTOR: usize = 8;
/// Tokens of the validation text that begin the sample.
const PROMPT_TOKENS: usize = 32;

/// Stands between prompt and sample.
const PROMPT_END: &str = "⟫";

/// What a run knows beside the trainer's own state; the user section of the state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Steps done, skipped ones included.
    pub step: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Where the data stands.
    pub data: Position,
    /// Lowest validation loss so far.
    pub best: Option<f64>,
}

impl RunState {
    /// The begin of a run.
    pub fn new(batches: &TrainBatches<'_>) -> Self {
        Self { step: 0, tokens: 0, data: batches.position(), best: None }
    }

    /// Reads the user section of the state file at `path`.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| CliError::RunFile {
            path: path.to_owned(),
            field: "user section",
            problem: format!("is not that of a run: {e}"),
        })
    }
}

/// The training batches of a run.
pub fn train_batches<'a>(corpus: &'a Corpus, config: &RunConfig) -> Result<TrainBatches<'a>> {
    let TrainSettings { batch, seq_len, seed, stateful, .. } = config.train;
    corpus.train(batch, seq_len, seed, stateful)
}

/// Batches that the model is measured on.
#[derive(Debug)]
pub struct Validation {
    usual: Vec<Batch>,
    last: Vec<Batch>,
    /// Bits per byte of one nat per token.
    bpb_per_nat: Option<f64>,
}

impl Validation {
    /// The validation batches of a run.
    pub fn new(corpus: &Corpus, config: &RunConfig) -> Result<Self> {
        let TrainSettings { batch, seq_len, eval_batches, .. } = config.train;
        Ok(Self {
            usual: corpus.validation(batch, seq_len, eval_batches)?.collect(),
            last: corpus.validation(batch, seq_len, eval_batches.saturating_mul(FINAL_FACTOR))?.collect(),
            bpb_per_nat: corpus.bytes_per_token().map(|b| std::f64::consts::LOG2_E / b),
        })
    }

    fn bits_per_byte(&self, nats_per_token: f64) -> Option<f64> {
        self.bpb_per_nat.map(|f| f * nats_per_token)
    }
}

/// Losses over batches, in nats.
fn measure(trainer: &mut LmTrainer, batches: &[Batch]) -> Result<LossSums> {
    let mut sums = LossSums::default();
    for batch in batches {
        sums.add(&trainer.evaluate(&batch.view())?);
    }
    Ok(sums)
}

/// A training under way.
pub struct Session<'a> {
    trainer: LmTrainer,
    corpus: &'a Corpus,
    batches: &'a mut TrainBatches<'a>,
    validation: Validation,
    folder: RunFolder,
    config: RunConfig,
    state: RunState,
    metrics: Metrics,
    events: EventWriter,
    progress: Progress,
    speed: Speed,
    /// The first of the last steps in a row whose gradient was not finite.
    not_finite_since: Option<u64>,
}

impl<'a> Session<'a> {
    /// A session that goes on from `state`.
    pub fn new(
        trainer: LmTrainer,
        corpus: &'a Corpus,
        batches: &'a mut TrainBatches<'a>,
        validation: Validation,
        folder: RunFolder,
        config: RunConfig,
        state: RunState,
    ) -> Result<Self> {
        let metrics = folder.metrics(state.step)?;
        let events = EventWriter::create(folder.root(), state.step)?;
        let progress = Progress::new(config.train.steps, state.step);
        let speed = Speed::default();
        Ok(Self {
            trainer,
            corpus,
            batches,
            validation,
            folder,
            config,
            state,
            metrics,
            events,
            progress,
            speed,
            not_finite_since: None,
        })
    }

    /// Trains to the end, or until asked to stop; saves in both cases.
    pub fn run(mut self, stop_after: Option<u64>, stop: &Stop) -> Result<()> {
        let mut left = stop_after.unwrap_or(u64::MAX);
        let result = self.train(&mut left, stop);
        self.progress.finish();
        let end = result.and_then(|()| match self.state.step == self.config.train.steps {
            true => self.conclude(),
            false => self.pause(),
        });
        end.map_err(|error| self.explain(error))
    }

    /// What is not finite in a training has diverged: such a state is not saved, and too many such steps end it.
    fn explain(&self, error: CliError) -> CliError {
        let problem = match &error {
            CliError::Model(ModelError::NonFinite { .. })
            | CliError::Trainer(
                TrainerError::Model(ModelError::NonFinite { .. })
                | TrainerError::Optim(OptimError::State { .. }),
            ) => error.one_line(),
            CliError::Trainer(TrainerError::Optim(OptimError::TooManySkips { consecutive, .. }))
                if self.not_finite_since.is_some() =>
            {
                format!("{consecutive} gradients in a row are not finite")
            }
            _ => return error,
        };
        CliError::Diverged { step: self.not_finite_since.unwrap_or(self.state.step), problem }
    }

    fn train(&mut self, left: &mut u64, stop: &Stop) -> Result<()> {
        let steps = self.config.train.steps;
        while self.state.step < steps && *left > 0 && !stop.asked() {
            *left -= 1;
            let metrics = self.step()?;
            self.note(&metrics);
            self.progress.step(self.state.step);
            let last = self.state.step == steps;
            self.log(last)?;
            if !last && self.due(self.config.train.save_every) {
                self.save()?;
            }
        }
        Ok(())
    }

    fn due(&self, every: u64) -> bool {
        every > 0 && self.state.step.is_multiple_of(every)
    }

    fn lr(&self) -> f64 {
        self.config.train.adamw.lr() * self.config.train.schedule.factor(self.state.step)
    }

    /// One optimizer step on the next batches.
    fn step(&mut self) -> Result<LmStepMetrics> {
        let start = Instant::now();
        self.trainer.set_lr(self.lr())?;
        let TrainSettings { accumulate, stateful, .. } = self.config.train;
        let metrics = if accumulate == 1 {
            let batch = self.next_batch(stateful)?;
            let metrics = self.trainer.step(&batch.view())?;
            self.capture()?;
            metrics
        } else {
            for _ in 0..accumulate {
                let batch = self.next_batch(stateful)?;
                self.trainer.accumulate(&batch.view())?;
            }
            self.trainer.apply_window()?
        };
        self.state.step += 1;
        self.state.tokens += self.config.train.tokens_per_step();
        self.state.data = self.batches.position();
        self.speed.add(start.elapsed(), self.config.train.tokens_per_step());
        Ok(metrics)
    }

    fn next_batch(&mut self, stateful: bool) -> Result<Batch> {
        if !stateful {
            self.trainer.reset_state()?;
        }
        self.batches.next()
    }

    /// On a GPU all further steps replay one graph.
    fn capture(&mut self) -> Result<()> {
        if matches!(self.trainer.ctx().device, Device::Cuda(_)) && !self.trainer.has_graph() {
            self.trainer.capture_graph()?;
        }
        Ok(())
    }

    /// Tells of a skipped step.
    fn note(&mut self, metrics: &LmStepMetrics) {
        self.not_finite_since = match metrics.verdict {
            Some(Verdict::NonFiniteSkipped) => self.not_finite_since.or(Some(self.state.step)),
            None => self.not_finite_since,
            Some(_) => None,
        };
        let why = match metrics.verdict {
            Some(Verdict::SpikeSkipped) => "above --skip-above",
            Some(Verdict::OutlierSkipped) => "an outlier by --skip-z-score",
            Some(Verdict::NonFiniteSkipped) => "not finite",
            _ => return,
        };
        let norm = metrics.grad_norm.map_or("unknown".to_owned(), |n| format!("{n:.3}"));
        self.progress.line(&format!("step {}: skipped, the gradient norm {norm} is {why}", self.state.step));
    }

    /// Logs the step where a line or a validation is due.
    fn log(&mut self, last: bool) -> Result<()> {
        let validate = last || self.due(self.config.train.eval_every);
        if !validate && !self.due(self.config.train.log_every) {
            return Ok(());
        }
        let newest = self.trainer.last_metrics()?;
        let mut record = Record {
            step: self.state.step,
            tokens: self.state.tokens,
            loss: newest.map(|m| m.loss),
            lr: Some(self.trainer.lr()),
            grad_norm: newest.and_then(|m| m.grad_norm),
            tokens_per_second: self.speed.take(),
            ..Record::default()
        };
        let left = self.speed.left(self.config.train.steps - self.state.step);
        self.progress.logged(&record, left);
        if validate {
            self.validate(&mut record)?;
        }
        self.write_events(&record)?;
        self.metrics.push(record)
    }

    fn validate(&mut self, record: &mut Record) -> Result<()> {
        let sums = measure(&mut self.trainer, &self.validation.usual)?;
        let (loss, tokens) = (sums.mean(), thousands(sums.tokens));
        record.val_loss = Some(loss);
        record.val_bpb = self.validation.bits_per_byte(loss);
        let bits = record.val_bpb.map_or(String::new(), |b| format!(", {b:.4} bits per byte"));
        self.progress
            .line(&format!("step {}  validation loss {loss:.4}{bits} ({tokens} tokens)", record.step));
        // A NaN is no improvement.
        if self.state.best.is_none_or(|best| loss < best) && loss.is_finite() {
            self.state.best = Some(loss);
            weights::save(&self.folder.best_weights(), &self.trainer.weights()?)?;
        }
        Ok(())
    }

    fn write_events(&mut self, record: &Record) -> Result<()> {
        let scalars = [
            ("loss/train", record.loss),
            ("loss/validation", record.val_loss),
            ("bits_per_byte/validation", record.val_bpb),
            ("learning_rate", record.lr),
            ("gradient_norm", record.grad_norm),
            ("tokens_per_second", record.tokens_per_second),
        ];
        for (tag, value) in scalars {
            if let Some(value) = value {
                self.events.scalar(tag, record.step, value)?;
            }
        }
        self.events.flush()
    }

    fn save(&mut self) -> Result<()> {
        let path = self.folder.last_state();
        let user = serde_json::to_vec(&self.state).map_err(|e| CliError::RunFile {
            path: path.clone(),
            field: "user section",
            problem: format!("cannot be written: {e}"),
        })?;
        self.trainer.save_state(&path, &user)?;
        weights::save(&self.folder.weights(), &self.trainer.weights()?)?;
        plot::draw(self.metrics.records(), self.folder.root())?;
        tracing::info!(step = self.state.step, path = %path.display(), "saved");
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        self.save()?;
        print_line(&format!(
            "saved at step {} of {}; go on with: mamba train --resume {}",
            self.state.step,
            self.config.train.steps,
            self.folder.root().display()
        ));
        Ok(())
    }

    fn conclude(&mut self) -> Result<()> {
        self.save()?;
        let sums = measure(&mut self.trainer, &self.validation.last)?;
        let loss = sums.mean();
        let summary = Summary {
            steps: self.state.step,
            tokens: self.state.tokens,
            val_tokens: sums.tokens,
            val_loss: loss.is_finite().then_some(loss),
            val_bpb: self.validation.bits_per_byte(loss),
            unigram_bpb: self.corpus.unigram_bits_per_byte(),
        };
        self.folder.write_summary(&summary)?;
        print_line(&format!("validation (final, {} tokens)", thousands(sums.tokens)));
        print_line(&format!("  loss             {loss:.4} nats per token"));
        if let Some(bits) = summary.val_bpb {
            print_line(&format!("  model            {bits:.4} bits per byte"));
        }
        if let Some(bits) = summary.unigram_bpb {
            print_line(&format!("  unigram entropy  {bits:.4} bits per byte"));
        }
        print_line(&format!("run folder {}", self.folder.root().display()));
        self.sample()
    }

    fn sample(&mut self) -> Result<()> {
        let TrainSettings { sample_tokens, seed, .. } = self.config.train;
        if sample_tokens == 0 {
            return Ok(());
        }
        let prompt = match &self.config.train.prompt {
            Some(text) => self.corpus.codec().encode(text)?,
            None => self.corpus.validation_prompt(PROMPT_TOKENS),
        };
        let sampler = Sampler::new(Sampling::new(0.7, None, Some(0.95))?, seed);
        let weights = self.trainer.weights()?;
        let ctx = self.trainer.ctx();
        let decoder = Decoder::new(&weights, 1, ctx.device, ctx.dtype)?;
        let mut writer = generate::Generator::new(&weights, decoder, sampler);
        let ids = writer.run(&prompt, sample_tokens, |_| Ok(()))?;
        let codec = self.corpus.codec();
        let begin = codec.decode(&prompt)?;
        // A tokenizer may write the begin of a text otherwise than its middle.
        let whole = codec.decode(&[prompt, ids.clone()].concat())?;
        let rest = match whole.strip_prefix(&begin[..]) {
            Some(rest) => rest.to_owned(),
            None => codec.decode(&ids)?,
        };
        print_line(&format!("sample (the prompt ends at {PROMPT_END})"));
        let text = [&begin, PROMPT_END.as_bytes(), &rest].concat();
        print_line(&match std::io::stdout().is_terminal() {
            true => printable(&text),
            false => String::from_utf8_lossy(&text).into_owned(),
        });
        Ok(())
    }
}

/// Tokens a second since the last line, and time a step.
#[derive(Debug, Default)]
struct Speed {
    time: Duration,
    tokens: u64,
    steps: u32,
    step: Option<Duration>,
}

impl Speed {
    fn add(&mut self, time: Duration, tokens: u64) {
        self.time += time;
        self.tokens += tokens;
        self.steps += 1;
    }

    fn take(&mut self) -> Option<f64> {
        self.step = self.time.checked_div(self.steps);
        let speed = self.tokens as f64 / self.time.as_secs_f64();
        (self.time, self.tokens, self.steps) = (Duration::ZERO, 0, 0);
        speed.is_finite().then_some(speed)
    }

    /// Time for so many more steps.
    fn left(&self, steps: u64) -> Option<Duration> {
        let seconds = self.step?.as_secs_f64() * steps as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }
}
