//! The folder of a run: config, checkpoints, metrics.
//!
//! `config.json` (everything needed to go on), `metrics.jsonl`, `summary.json` (at the end), `events.out.tfevents.*`,
//! `loss.svg`, `loss.png`, `weights.safetensors` (newest), `checkpoints/last.state`, `checkpoints/best.safetensors`
//! (lowest validation loss), `tokenizer.json` where the run has one.

use crate::data::{DataSpec, Fingerprint};
use crate::error::{CliError, Result, io};
use crate::train::settings::TrainSettings;
use mamba_model::ModelConfig;
use mamba_model::files::atomic_write;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Version of the layout of `config.json`.
const VERSION: u32 = 1;
/// Largest config file; a real one has about a kilobyte.
const CONFIG_LIMIT: u64 = 1 << 20;

/// Everything needed to go on with a run, beside its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    version: u32,
    /// The model.
    pub model: ModelConfig,
    /// The data.
    pub data: DataSpec,
    /// What the data was.
    pub fingerprint: Fingerprint,
    /// The training.
    pub train: TrainSettings,
}

impl RunConfig {
    /// The config of a new run.
    pub fn new(model: ModelConfig, data: DataSpec, fingerprint: Fingerprint, train: TrainSettings) -> Self {
        Self { version: VERSION, model, data, fingerprint, train }
    }
}

/// One line of `metrics.jsonl`. What is not known at this step is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Steps done.
    pub step: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Loss of the step, nats a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Learning rate of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Norm of the gradient before the clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Tokens a second since the last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Validation loss, nats a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Validation loss in bits per byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_bpb: Option<f64>,
}

/// What came out of a run; `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Tokens that the model was measured on at the end, more than during the training.
    #[serde(default)]
    pub val_tokens: u64,
    /// Validation loss at the end, nats a token; `None` where it is not finite.
    pub val_loss: Option<f64>,
    /// The same in bits per byte.
    pub val_bpb: Option<f64>,
    /// Entropy of single tokens of the validation text, bits per byte.
    pub unigram_bpb: Option<f64>,
}

/// A run's folder, held for this process alone.
#[derive(Debug)]
pub struct RunFolder {
    root: PathBuf,
    /// Holds the lock.
    _config: File,
}

impl RunFolder {
    /// A new folder at `out`, or the next free `runs/N`.
    pub fn create(out: Option<&Path>, config: &RunConfig) -> Result<Self> {
        let root = match out {
            Some(out) => {
                if let Some(parent) = out.parent() {
                    std::fs::create_dir_all(parent).map_err(io(parent, "create"))?;
                }
                make_new(out)?;
                out.to_owned()
            }
            None => next_free(Path::new("runs"))?,
        };
        let checkpoints = root.join("checkpoints");
        std::fs::create_dir(&checkpoints).map_err(io(&checkpoints, "create"))?;
        let path = root.join("config.json");
        write_json(&path, config)?;
        Self::lock(root)
    }

    /// The folder of a run that exists, and its config.
    pub fn open(root: &Path) -> Result<(Self, RunConfig)> {
        if !is_run(root) {
            return Err(CliError::NoRun { path: root.to_owned() });
        }
        let config = read_config(root)?;
        Ok((Self::lock(root.to_owned())?, config))
    }

    fn lock(root: PathBuf) -> Result<Self> {
        let path = root.join("config.json");
        let file = File::open(&path).map_err(io(&path, "open"))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { root, _config: file }),
            Err(std::fs::TryLockError::WouldBlock) => Err(CliError::Busy { path: root }),
            Err(std::fs::TryLockError::Error(source)) => Err(io(&path, "lock")(source)),
        }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The training state to go on from.
    pub fn last_state(&self) -> PathBuf {
        last_state(&self.root)
    }

    /// Weights of the lowest validation loss.
    pub fn best_weights(&self) -> PathBuf {
        self.root.join("checkpoints/best.safetensors")
    }

    /// Newest weights.
    pub fn weights(&self) -> PathBuf {
        weights(&self.root)
    }

    /// Keeps the tokenizer beside the weights that need it.
    pub fn keep_tokenizer(&self, tokenizer: &Path) -> Result<()> {
        let to = tokenizer_path(&self.root);
        std::fs::copy(tokenizer, to).map_err(io(tokenizer, "copy into the run folder"))?;
        Ok(())
    }

    /// Writes what came out of the run.
    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        write_json(&self.root.join("summary.json"), summary)
    }

    fn metrics_path(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Opens the metrics to go on after `step`: later lines, which a killed process may have left, are dropped.
    pub fn metrics(&self, step: u64) -> Result<Metrics> {
        let path = self.metrics_path();
        let mut records = if path.exists() { read_records(&path)? } else { Vec::new() };
        records.retain(|r| r.step <= step);
        let mut lines = String::new();
        for record in &records {
            lines.push_str(&line(&path, record)?);
        }
        atomic_write(&path, |file| file.write_all(lines.as_bytes()))?;
        let file = File::options().append(true).open(&path).map_err(io(&path, "open"))?;
        Ok(Metrics { path, file, records })
    }
}

/// Newest weights of a run folder.
pub fn weights(root: &Path) -> PathBuf {
    root.join("weights.safetensors")
}

/// The tokenizer of a run folder or of a pretrained one.
pub fn tokenizer_path(root: &Path) -> PathBuf {
    root.join("tokenizer.json")
}

/// State of a run folder.
pub fn last_state(root: &Path) -> PathBuf {
    root.join("checkpoints/last.state")
}

/// The run folder that a path is, or lies in.
pub fn around(path: &Path) -> Option<&Path> {
    path.ancestors().take(3).find(|folder| is_run(folder))
}

/// Why a run folder has no weights.
pub fn no_checkpoint(root: &Path) -> CliError {
    let path = root.to_owned();
    match RunFolder::lock(path.clone()) {
        Err(CliError::Busy { path }) => CliError::NotYet { path },
        _ => CliError::NoCheckpoint { path },
    }
}

/// Whether a path looks like a run folder of ours.
pub fn is_run(root: &Path) -> bool {
    root.join("config.json").is_file() && root.join("checkpoints").is_dir()
}

/// The config of a run folder.
pub fn read_config(root: &Path) -> Result<RunConfig> {
    let path = root.join("config.json");
    let len = std::fs::metadata(&path).map_err(io(&path, "open"))?.len();
    if len > CONFIG_LIMIT {
        let problem = format!("is {len} bytes long; no config of a run has more than {CONFIG_LIMIT}");
        return Err(CliError::RunFile { path, field: "config", problem });
    }
    let text = std::fs::read_to_string(&path).map_err(io(&path, "read"))?;
    let config: RunConfig = serde_json::from_str(&text).map_err(|e| CliError::RunFile {
        path: path.clone(),
        field: "config",
        problem: format!("is not the config of a run: {e}"),
    })?;
    if config.version != VERSION {
        let problem = format!("is {}; this program reads {VERSION}", config.version);
        return Err(CliError::RunFile { path, field: "version", problem });
    }
    config.model.validate()?;
    config.train.validate()?;
    Ok(config)
}

/// Logged lines of a run.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Metrics {
    /// Appends a line.
    pub fn push(&mut self, record: Record) -> Result<()> {
        let line = line(&self.path, &record)?;
        self.file.write_all(line.as_bytes()).map_err(io(&self.path, "write"))?;
        self.records.push(record);
        Ok(())
    }

    /// All lines so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

fn make_new(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let path = path.to_owned();
            Err(if is_run(&path) { CliError::RunExists { path } } else { CliError::Exists { path } })
        }
        result => result.map_err(io(path, "create")),
    }
}

fn next_free(parent: &Path) -> Result<PathBuf> {
    if !parent.exists() {
        std::fs::create_dir_all(parent).map_err(io(parent, "create"))?;
        // A run must not become training data of the next one.
        let ignore = parent.join(".gitignore");
        std::fs::write(&ignore, "*\n").map_err(io(&ignore, "write"))?;
    }
    for n in 1u32.. {
        let path = parent.join(n.to_string());
        match make_new(&path) {
            Err(CliError::Exists { .. } | CliError::RunExists { .. }) => {}
            result => return result.map(|()| path),
        }
    }
    Err(CliError::Exists { path: parent.to_owned() })
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| json_error(path, "document", &e))?;
    Ok(atomic_write(path, |file| writeln!(file, "{text}"))?)
}

fn line(path: &Path, record: &Record) -> Result<String> {
    serde_json::to_string(record).map(|text| text + "\n").map_err(|e| json_error(path, "line", &e))
}

fn json_error(path: &Path, field: &'static str, error: &serde_json::Error) -> CliError {
    CliError::RunFile { path: path.to_owned(), field, problem: format!("cannot be written: {error}") }
}

/// What came out of a run, where it has come to its end.
pub fn read_summary(root: &Path) -> Result<Option<Summary>> {
    let path = root.join("summary.json");
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(io(&path, "read"))?;
    serde_json::from_str(&text).map(Some).map_err(|e| CliError::RunFile {
        path,
        field: "summary",
        problem: format!("is not that of a run: {e}"),
    })
}

/// All lines of a metrics file; a last line that a killed process left unfinished is dropped.
pub fn read_records(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(io(path, "read"))?;
    let count = text.lines().count();
    let mut records = Vec::with_capacity(count);
    for (i, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if i + 1 == count && !text.ends_with('\n') => {}
            Err(e) => {
                let problem = format!("{} is no record: {e}", i + 1);
                return Err(CliError::RunFile { path: path.to_owned(), field: "line", problem });
            }
        }
    }
    Ok(records)
}
