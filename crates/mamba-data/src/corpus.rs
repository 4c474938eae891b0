//! All tokens of some data, cut into a training and a validation part.

use crate::error::{DataError, Result, setting};
use crate::text::{SEPARATOR, Skipped, read_documents, why_no_text};
use crate::token_file::{TokenFile, Width};
use crate::tokenizer::Tokenizer;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Tokens of a block, at least: validation blocks lie evenly between training blocks.
const MIN_BLOCK: usize = 4096;
/// Blocks of a large corpus.
const BLOCKS: usize = 256;

#[derive(Debug)]
enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
    File(TokenFile),
}

/// A part of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// To learn from.
    Train,
    /// To be tested on.
    Validation,
}

/// Where data lies and how it is read.
#[derive(Debug, Clone)]
pub struct CorpusOptions {
    /// How text becomes tokens.
    pub tokenizer: Tokenizer,
    /// Part kept for validation, 0 to 1.
    pub validation: f64,
    /// Width of the ids of a .bin file without header.
    pub width: Width,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        Self { tokenizer: Tokenizer::Bytes, validation: 0.1, width: Width::U16 }
    }
}

/// Tokens of a text file, a folder of text, or a .bin file.
#[derive(Debug)]
pub struct Corpus {
    path: PathBuf,
    tokens: Tokens,
    separator: Option<u32>,
    vocab_size: usize,
    /// Bytes of text that the tokens stand for; 0 where that is not known.
    bytes: u64,
    /// Files that were read.
    files: usize,
    skipped: Vec<Skipped>,
    train: Vec<Range<usize>>,
    validation: Vec<Range<usize>>,
}

impl Corpus {
    /// Reads and tokenizes data. Documents are followed by the tokenizer's separator (byte 0 for bytes).
    ///
    /// # Errors
    /// [`DataError`] naming the file and what is wrong with it.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Self> {
        if !(0.0..=1.0).contains(&options.validation) {
            return Err(setting("validation", options.validation, "from 0 to 1"));
        }
        let mut corpus = if path.extension().is_some_and(|e| e == "bin") {
            Self::of_file(path, options.width)?
        } else {
            Self::of_text(path, &options.tokenizer)?
        };
        if corpus.is_empty() {
            let problem = match (corpus.files, path.is_dir()) {
                (0, true) => why_no_text(&corpus.skipped),
                _ => "there are no tokens in it".to_owned(),
            };
            return Err(DataError::NoText { path: path.to_owned(), problem });
        }
        (corpus.train, corpus.validation) = split(corpus.len(), options.validation);
        Ok(corpus)
    }

    fn of_file(path: &Path, width: Width) -> Result<Self> {
        let file = TokenFile::open(path, width)?;
        let vocab_size = file.vocab_size();
        Ok(Self::new(path, Tokens::File(file), None, vocab_size))
    }

    fn of_text(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let documents = read_documents(path)?;
        let bytes = documents.texts.iter().map(|t| t.len() as u64).sum();
        let separator = tokenizer.separator();
        let tokens = match tokenizer {
            Tokenizer::Bytes => {
                let mut all = Vec::with_capacity(bytes as usize + documents.texts.len());
                for text in &documents.texts {
                    all.extend_from_slice(text.as_bytes());
                    all.push(SEPARATOR);
                }
                Tokens::Bytes(all)
            }
            Tokenizer::HuggingFace(_) => {
                let mut all = Vec::new();
                for text in &documents.texts {
                    all.extend(tokenizer.encode(text)?);
                    all.extend(separator);
                }
                Tokens::Ids(all)
            }
        };
        let (files, skipped) = (documents.texts.len(), documents.skipped);
        Ok(Self { bytes, files, skipped, ..Self::new(path, tokens, separator, tokenizer.vocab_size()) })
    }

    /// A corpus of one file that no text was read from.
    fn new(path: &Path, tokens: Tokens, separator: Option<u32>, vocab_size: usize) -> Self {
        let (path, skipped, train, validation) = (path.to_owned(), Vec::new(), Vec::new(), Vec::new());
        Self { path, tokens, separator, vocab_size, bytes: 0, files: 1, skipped, train, validation }
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        match &self.tokens {
            Tokens::Bytes(b) => b.len(),
            Tokens::Ids(ids) => ids.len(),
            Tokens::File(f) => f.len(),
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that a model of this data must know.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token between two documents.
    pub fn separator(&self) -> Option<u32> {
        self.separator
    }

    /// Number of files that were read.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Files that were left out because they are no text; hidden and ignored ones are not among them.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// One token; `None` past the end.
    pub fn get(&self, index: usize) -> Option<u32> {
        match &self.tokens {
            Tokens::Bytes(b) => b.get(index).map(|&b| u32::from(b)),
            Tokens::Ids(ids) => ids.get(index).copied(),
            Tokens::File(f) => f.get(index),
        }
    }

    /// Tokens of a range; those past the end are left out.
    pub fn read(&self, range: Range<usize>) -> Vec<u32> {
        range.map_while(|i| self.get(i)).collect()
    }

    /// The stretches of a part; no window crosses from one into the other part.
    pub fn stretches(&self, part: Part) -> &[Range<usize>] {
        match part {
            Part::Train => &self.train,
            Part::Validation => &self.validation,
        }
    }

    /// Tokens of a part.
    pub fn part_len(&self, part: Part) -> usize {
        self.stretches(part).iter().map(Range::len).sum()
    }

    /// All tokens of a part, in order.
    pub fn part_tokens(&self, part: Part) -> impl Iterator<Item = u32> + '_ {
        self.stretches(part).iter().cloned().flatten().filter_map(|i| self.get(i))
    }

    /// Bytes of text that a token stands for, on average; `None` for ids without text.
    pub fn bytes_per_token(&self) -> Option<f64> {
        (self.bytes > 0).then(|| {
            if matches!(self.tokens, Tokens::Bytes(_)) { 1.0 } else { self.bytes as f64 / self.len() as f64 }
        })
    }

    /// Entropy of single tokens of a part, in bits a byte of text: what a model without context could reach. `None` for
    /// ids without text and for an empty part.
    pub fn unigram_bits_per_byte(&self, part: Part) -> Option<f64> {
        let mut counts = vec![0u64; self.vocab_size];
        let mut total = 0u64;
        for id in self.part_tokens(part) {
            *counts.get_mut(id as usize)? += 1;
            total += 1;
        }
        let bits = |&c: &u64| {
            let p = c as f64 / total as f64;
            -p * libm::log2(p)
        };
        let entropy: f64 = counts.iter().filter(|&&c| c > 0).map(bits).sum();
        (total > 0).then_some(entropy).and_then(|h| Some(h / self.bytes_per_token()?))
    }
}

/// Stretches for training and validation: of equal blocks, evenly spaced ones are kept for validation, so that they
/// resemble the rest. Data of so few blocks that the smaller part is less than one is cut once, near its end.
fn split(len: usize, validation: f64) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let block = (len / BLOCKS).max(MIN_BLOCK);
    let blocks = len / block;
    if blocks as f64 * validation.min(1.0 - validation) < 1.0 {
        let cut = ((1.0 - validation) * len as f64).round() as usize;
        let keep = |r: Range<usize>| if r.is_empty() { Vec::new() } else { vec![r] };
        return (keep(0..cut), keep(cut..len));
    }
    let (mut train, mut held) = (Vec::<Range<usize>>::new(), Vec::<Range<usize>>::new());
    let wanted = ((validation * blocks as f64).round() as usize).clamp(1, blocks - 1);
    for i in 0..blocks {
        let range = i * block..if i + 1 == blocks { len } else { (i + 1) * block };
        let part = if (i + 1) * wanted / blocks > i * wanted / blocks { &mut held } else { &mut train };
        match part.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => part.push(range),
        }
    }
    (train, held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_disjoint_and_cover(len in 1usize..3_000_000, validation in 0.0f64..=1.0) {
            let (train, held) = split(len, validation);
            let mut all: Vec<_> = train.iter().chain(&held).cloned().collect();
            all.sort_by_key(|r| r.start);
            let mut at = 0;
            for r in &all {
                prop_assert_eq!(r.start, at);
                at = r.end;
            }
            prop_assert_eq!(at, len);
            let share = held.iter().map(Range::len).sum::<usize>() as f64 / len as f64;
            // Half a block of rounding, and the last block may be twice as long.
            let block = (len / BLOCKS).max(MIN_BLOCK) as f64 / len as f64;
            prop_assert!((share - validation).abs() <= 1.5 * block.min(1.0) + 1.0 / len as f64, "{} of {}", share, validation);
        }
    }

    #[test]
    fn a_small_share_of_a_short_text_stays_small() {
        let (train, held) = split(11_600, 0.001);
        assert_eq!((train.len(), held.len()), (1, 1));
        assert_eq!((train[0].clone(), held[0].clone()), (0..11_588, 11_588..11_600));
    }

    #[test]
    fn a_large_corpus_keeps_its_share() {
        let (_, held) = split(10_000_000, 0.1);
        let share = held.iter().map(Range::len).sum::<usize>() as f64 / 1e7;
        assert!((share - 0.1).abs() < 0.01, "{share}");
        assert!(held.len() > 20, "{} stretches", held.len());
    }
}
