//! Text in, batches out: everything the commands ask of the data.

use crate::error::{CliError, Result};
use crate::run_folder;
use mamba_data::{CorpusOptions, DataPosition, LmBatch, Part, Sampler, SamplerOptions, Tokenizer, Width};
use mamba_model::ModelConfig;
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
    /// Width of the ids of a .bin file without header.
    pub token_width: Width,
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
pub struct Batch(LmBatch);

impl Batch {
    /// The trainer's view of it.
    pub fn view(&self) -> TokenBatch<'_> {
        TokenBatch { reset: self.0.reset.as_deref(), ..TokenBatch::new(&self.0.inputs, &self.0.targets) }
    }
}

/// Text to tokens and back.
#[derive(Debug)]
pub enum Codec {
    /// Bytes, or a tokenizer file.
    Text(Tokenizer),
    /// Ids that stand for nothing that is known here.
    Ids,
}

impl Codec {
    /// The codec of a tokenizer file, or bytes.
    pub fn open(tokenizer: Option<&Path>) -> Result<Self> {
        let tokenizer = tokenizer.map_or(Ok(Tokenizer::Bytes), Tokenizer::open)?;
        Ok(Self::Text(tokenizer))
    }

    /// The tokenizer that belongs to a model: the given one, or the one beside the model.
    pub fn tokenizer_of(model: &Path, given: Option<&Path>) -> Option<PathBuf> {
        let folder = if model.is_dir() { model } else { model.parent().unwrap_or(Path::new("")) };
        // A run's checkpoints lie one folder deeper.
        let folders = [Some(folder), folder.parent().filter(|_| folder.ends_with("checkpoints"))];
        let beside =
            folders.into_iter().flatten().map(run_folder::tokenizer_path).find(|path| path.is_file());
        given.map(Path::to_owned).or(beside)
    }

    /// The codec that belongs to a model: its tokenizer, or bytes for a vocabulary of 256, or bare ids.
    pub fn for_model(model: &Path, tokenizer: Option<&Path>, vocab_size: usize) -> Result<Self> {
        match Self::tokenizer_of(model, tokenizer) {
            Some(path) => Self::open(Some(&path)),
            None if vocab_size == 256 => Ok(Self::Text(Tokenizer::Bytes)),
            None => Ok(Self::Ids),
        }
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Text(tokenizer) => Ok(tokenizer.encode(text)?),
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
            Self::Text(tokenizer) => Ok(tokenizer.decode(ids)?),
            Self::Ids => Ok(ids.iter().flat_map(|id| format!(" {id}").into_bytes()).collect()),
        }
    }
}

/// Whether data is a file of token ids.
pub fn holds_ids(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "bin")
}

/// All tokens of some data, cut into a training and a validation part.
#[derive(Debug)]
pub struct Corpus {
    codec: Codec,
    inner: mamba_data::Corpus,
    vocab_size: usize,
}

impl Corpus {
    /// Reads and tokenizes the data.
    pub fn open(spec: &DataSpec) -> Result<Self> {
        let tokenizer = spec.tokenizer.as_deref().map_or(Ok(Tokenizer::Bytes), Tokenizer::open)?;
        let codec = if holds_ids(&spec.path) && spec.tokenizer.is_none() {
            Codec::Ids
        } else {
            Codec::Text(tokenizer.clone())
        };
        let text_vocabulary = tokenizer.vocab_size();
        let (validation, width) = (spec.val_fraction, spec.token_width);
        let inner = mamba_data::Corpus::open(&spec.path, &CorpusOptions { tokenizer, validation, width })?;
        for skipped in inner.skipped() {
            tracing::info!("left out {}: {}", skipped.path.display(), skipped.reason);
        }
        // Ids that no text gave must still be those of the tokenizer.
        let vocab_size = match codec {
            Codec::Ids => inner.vocab_size(),
            Codec::Text(_) if inner.vocab_size() > text_vocabulary => {
                let (found, path) = (inner.vocab_size(), spec.path.clone());
                return Err(CliError::ForeignIds { path, found, tokenizer: text_vocabulary });
            }
            Codec::Text(_) => text_vocabulary,
        };
        Ok(Self { codec, inner, vocab_size })
    }

    /// Text to tokens and back.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Tokens that a model of this data must know.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Checks that a model knows every token.
    ///
    /// # Errors
    /// [`CliError::Vocabulary`].
    pub fn check_vocabulary(&self, model: &ModelConfig) -> Result<()> {
        let (data, model) = (self.vocab_size, model.lm.as_ref().map_or(0, |lm| lm.vocab_size));
        let (what, remedy) = match &self.codec {
            Codec::Ids => ("the ids of the file", "the ids that belong to the model"),
            Codec::Text(Tokenizer::Bytes) => ("bytes", "the `--tokenizer` that belongs to the model"),
            Codec::Text(_) => ("the tokens of the tokenizer", "the one that belongs to the model"),
        };
        match data <= model {
            true => Ok(()),
            false => Err(CliError::Vocabulary { what, remedy, data, model }),
        }
    }

    /// How many files were read and how many were left out, where the data is a folder.
    pub fn files(&self) -> Option<String> {
        let files = |n: usize| if n == 1 { "1 file".to_owned() } else { format!("{n} files") };
        let left_out = match self.inner.skipped().len() {
            0 => String::new(),
            n => format!(", {} left out (-v lists them)", files(n)),
        };
        let read = self.inner.files();
        self.inner.path().is_dir().then(|| format!("{} read{left_out}", files(read)))
    }

    /// Tokens for training and for validation.
    pub fn sizes(&self) -> (u64, u64) {
        let of = |part| self.inner.part_len(part) as u64;
        (of(Part::Train), of(Part::Validation))
    }

    /// What tells this data from other data.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut crc = crc32fast::Hasher::new();
        for part in [Part::Train, Part::Validation] {
            self.inner.part_tokens(part).for_each(|t| crc.update(&t.to_le_bytes()));
        }
        Fingerprint { tokens: self.inner.len() as u64, crc32: crc.finalize() }
    }

    /// Endless training batches.
    pub fn train(&self, batch: usize, seq_len: usize, seed: u64, stateful: bool) -> Result<TrainBatches<'_>> {
        let options = SamplerOptions { batch, seq_len, seed, stateful };
        Ok(TrainBatches(Sampler::new(&self.inner, Part::Train, options)?))
    }

    /// At most `limit` batches and at least one, spread evenly over the validation part.
    ///
    /// # Errors
    /// [`CliError::NoWindow`] where the part is shorter than one window.
    pub fn validation(
        &self,
        batch: usize,
        seq_len: usize,
        limit: usize,
    ) -> Result<impl ExactSizeIterator<Item = Batch>> {
        let batches = mamba_data::evenly_spread(&self.inner, Part::Validation, batch, seq_len, limit);
        if batches.len() == 0 {
            let (path, tokens) = (self.inner.path().to_owned(), self.inner.part_len(Part::Validation));
            let remedy = match self.inner.part_len(Part::Train) {
                0 => "more text or a smaller `--seq-len`",
                _ => "more text, a larger `--val-fraction` or a smaller `--seq-len`",
            };
            return Err(CliError::NoWindow { path, tokens, seq_len, remedy });
        }
        Ok(batches.map(Batch))
    }

    /// The first text of the validation part, about so many tokens.
    pub fn validation_prompt(&self, tokens: usize) -> Vec<u32> {
        self.inner.part_tokens(Part::Validation).take(tokens).collect()
    }

    /// Bytes that a token stands for, on average; `None` for bare ids.
    pub fn bytes_per_token(&self) -> Option<f64> {
        self.inner.bytes_per_token()
    }

    /// Entropy of single tokens of the validation part, in bits a byte; `None` for bare ids.
    pub fn unigram_bits_per_byte(&self) -> Option<f64> {
        self.inner.unigram_bits_per_byte(Part::Validation)
    }
}

/// Where the training batches stand.
pub type Position = DataPosition;

/// Endless training batches in a seeded order.
#[derive(Debug)]
pub struct TrainBatches<'a>(Sampler<'a>);

impl TrainBatches<'_> {
    /// The next batch.
    pub fn next(&mut self) -> Result<Batch> {
        Ok(Batch(self.0.next_batch()))
    }

    /// Where the batches stand.
    pub fn position(&self) -> Position {
        self.0.position()
    }

    /// Goes on from a position.
    pub fn seek(&mut self, position: &Position) -> Result<()> {
        Ok(self.0.seek(*position)?)
    }
}
