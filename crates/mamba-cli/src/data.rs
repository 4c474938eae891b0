//! Text in, batches out: everything the commands ask of the data.

use crate::error::{CliError, Result, io};
use mamba_model::IGNORE_INDEX;
use mamba_model::rng::SplitMix64;
use mamba_trainer::TokenBatch;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where the data lies and how it is cut; part of a run's config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// Text file, folder or .bin file.
    pub path: PathBuf,
    /// Hugging Face tokenizer.json.
    pub tokenizer: Option<PathBuf>,
    /// Part of the data kept for validation.
    pub val_fraction: f64,
}

/// What tells one body of data from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Tokens.
    pub tokens: u64,
    /// CRC-32 of the tokens.
    pub crc32: u32,
}

/// One window of tokens with targets, `[batch, seq_len]`.
#[derive(Debug, Clone)]
pub struct Batch {
    inputs: Vec<u32>,
    targets: Vec<i32>,
}

impl Batch {
    /// The trainer's view of it.
    pub fn view(&self) -> TokenBatch<'_> {
        TokenBatch::new(&self.inputs, &self.targets)
    }
}

/// Text to tokens and back.
#[derive(Debug)]
pub enum Codec {
    /// Every byte is a token.
    Bytes,
    /// Ids that stand for nothing that is known here.
    Ids,
}

impl Codec {
    /// The codec of a tokenizer file, or bytes.
    pub fn open(_tokenizer: Option<&Path>) -> Result<Self> {
        Ok(Self::Bytes)
    }

    /// The tokenizer that belongs to a model: the given one, or the one beside the model.
    pub fn tokenizer_of(model: &Path, given: Option<&Path>) -> Option<PathBuf> {
        let folder = if model.is_dir() { model } else { model.parent().unwrap_or(Path::new("")) };
        let beside = || Some(crate::run_folder::tokenizer_path(folder)).filter(|path| path.is_file());
        given.map(Path::to_owned).or_else(beside)
    }

    /// The codec that belongs to a model: its tokenizer, or bytes for a vocabulary of 256, or bare ids.
    pub fn for_model(model: &Path, tokenizer: Option<&Path>, vocab_size: usize) -> Result<Self> {
        match Self::tokenizer_of(model, tokenizer) {
            Some(path) => Self::open(Some(&path)),
            None if vocab_size == 256 => Ok(Self::Bytes),
            None => Ok(Self::Ids),
        }
    }

    /// Tokens in the vocabulary, where the codec knows.
    pub fn vocab_size(&self) -> Option<usize> {
        match self {
            Self::Bytes => Some(256),
            Self::Ids => None,
        }
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Ids => text
                .split_whitespace()
                .map(|word| word.parse())
                .collect::<std::result::Result<_, _>>()
                .map_err(|_| CliError::Prompt {
                    problem: "must be token ids: the model has no tokenizer".into(),
                }),
        }
    }

    /// Bytes of tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        match self {
            Self::Bytes => Ok(ids.iter().map(|&id| id as u8).collect()),
            Self::Ids => Ok(ids.iter().flat_map(|id| format!("{id} ").into_bytes()).collect()),
        }
    }
}

/// All tokens of some data, cut into a training and a validation part.
#[derive(Debug)]
pub struct Corpus {
    codec: Codec,
    tokens: Vec<u32>,
    train: usize,
}

impl Corpus {
    /// Reads and tokenizes the data.
    pub fn open(spec: &DataSpec) -> Result<Self> {
        let mut tokens = Vec::new();
        read_into(&spec.path, &mut tokens)?;
        let train = ((1.0 - spec.val_fraction) * tokens.len() as f64) as usize;
        Ok(Self { codec: Codec::Bytes, tokens, train })
    }

    /// Text to tokens and back.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Tokens that a model of this data must know.
    pub fn vocab_size(&self) -> usize {
        256
    }

    /// Tokens for training and for validation.
    pub fn sizes(&self) -> (u64, u64) {
        (self.train as u64, (self.tokens.len() - self.train) as u64)
    }

    /// What tells this data from other data.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut crc = crc32fast::Hasher::new();
        self.tokens.iter().for_each(|t| crc.update(&t.to_le_bytes()));
        Fingerprint { tokens: self.tokens.len() as u64, crc32: crc.finalize() }
    }

    /// Endless training batches.
    pub fn train(
        &self,
        batch: usize,
        seq_len: usize,
        seed: u64,
        _stateful: bool,
    ) -> Result<TrainBatches<'_>> {
        Ok(TrainBatches {
            tokens: &self.tokens[..self.train],
            batch,
            seq_len,
            seed,
            position: Position { drawn: 0 },
        })
    }

    /// At most `limit` batches, spread evenly over the validation part.
    pub fn validation(&self, batch: usize, seq_len: usize, limit: usize) -> Result<Vec<Batch>> {
        let tokens = &self.tokens[self.train..];
        let windows: Vec<&[u32]> = tokens.windows(seq_len + 1).step_by(seq_len).collect();
        let wanted = (limit * batch).min(windows.len());
        let chosen: Vec<&[u32]> = (0..wanted).map(|i| windows[i * windows.len() / wanted]).collect();
        Ok(chosen.chunks(batch).map(|w| to_batch(w, batch, seq_len)).collect())
    }

    /// The first text of the validation part, about so many tokens.
    pub fn validation_prompt(&self, tokens: usize) -> Vec<u32> {
        self.tokens[self.train..].iter().take(tokens).copied().collect()
    }

    /// Bytes that a token of the validation part stands for, on average; `None` for bare ids.
    pub fn bytes_per_token(&self) -> Option<f64> {
        Some(1.0)
    }

    /// Entropy of single bytes of the validation part, in bits; `None` for bare ids.
    pub fn unigram_bits_per_byte(&self) -> Option<f64> {
        let mut counts = [0u64; 256];
        let tokens = &self.tokens[self.train..];
        tokens.iter().for_each(|&t| counts[t as usize] += 1);
        let n = tokens.len() as f64;
        let terms = counts.iter().filter(|&&c| c > 0).map(|&c| c as f64 / n);
        Some(-terms.map(|p| p * libm::log2(p)).sum::<f64>())
    }
}

fn to_batch(windows: &[&[u32]], batch: usize, seq_len: usize) -> Batch {
    let mut out = Batch { inputs: vec![0; batch * seq_len], targets: vec![IGNORE_INDEX; batch * seq_len] };
    for (row, window) in windows.iter().enumerate() {
        for (t, pair) in window.windows(2).enumerate() {
            out.inputs[row * seq_len + t] = pair[0];
            out.targets[row * seq_len + t] = pair[1] as i32;
        }
    }
    out
}

fn read_into(path: &Path, tokens: &mut Vec<u32>) -> Result<()> {
    let info = std::fs::metadata(path).map_err(io(path, "open"))?;
    if info.is_file() {
        let text = std::fs::read(path).map_err(io(path, "read"))?;
        tokens.extend(text.iter().map(|&b| u32::from(b)));
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io(path, "list"))? {
        entries.push(entry.map_err(io(path, "list"))?.path());
    }
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = ["rs", "md", "toml", "cu", "cuh", "txt"]
            .iter()
            .any(|e| entry.extension().is_some_and(|x| x == *e));
        if !name.starts_with('.') && name != "target" && name != "runs" && (text || entry.is_dir()) {
            read_into(&entry, tokens)?;
        }
    }
    Ok(())
}

/// Where the training batches stand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position {
    drawn: u64,
}

/// Endless training batches in a seeded order.
#[derive(Debug)]
pub struct TrainBatches<'a> {
    tokens: &'a [u32],
    batch: usize,
    seq_len: usize,
    seed: u64,
    position: Position,
}

impl TrainBatches<'_> {
    /// The next batch.
    pub fn next(&mut self) -> Result<Batch> {
        let mut rng = SplitMix64::new(self.seed ^ self.position.drawn, "windows");
        self.position.drawn += 1;
        let span = self.tokens.len() - self.seq_len;
        let windows: Vec<&[u32]> = (0..self.batch)
            .map(|_| (rng.unit() * span as f64) as usize)
            .map(|at| &self.tokens[at..=at + self.seq_len])
            .collect();
        Ok(to_batch(&windows, self.batch, self.seq_len))
    }

    /// Where the batches stand.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    /// Goes on from a position.
    pub fn seek(&mut self, position: &Position) -> Result<()> {
        self.position = position.clone();
        Ok(())
    }
}
