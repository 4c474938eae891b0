//! Endless batches of windows, in an order that depends on the seed only.

use crate::corpus::{Corpus, Part};
use crate::error::{DataError, Result, setting};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Targets of this value do not count.
pub const IGNORE_INDEX: i32 = -100;

/// One batch, `[batch, seq_len]` row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LmBatch {
    /// Token ids.
    pub inputs: Vec<u32>,
    /// What each position must predict; [`IGNORE_INDEX`] past the end of the data.
    pub targets: Vec<i32>,
    /// 1 where the state must start afresh: at the first token of a document.
    pub reset: Option<Vec<u8>>,
}

/// Sizes and order of the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerOptions {
    /// Windows of a batch.
    pub batch: usize,
    /// Tokens of a window.
    pub seq_len: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Rows are streams that go on from batch to batch, for a carried state; else windows are shuffled.
    pub stateful: bool,
}

/// Where a sampler stands: everything a resumed run needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPosition {
    /// Epochs finished.
    pub epoch: u64,
    /// Batches drawn in this epoch.
    pub batch: u64,
}

/// Endless batches of one part of a corpus.
#[derive(Debug)]
pub struct Sampler<'a> {
    corpus: &'a Corpus,
    part: Part,
    options: SamplerOptions,
    position: DataPosition,
    /// First token of every window of this epoch.
    windows: Windows,
}

impl<'a> Sampler<'a> {
    /// A sampler at the beginning.
    ///
    /// # Errors
    /// [`DataError::Setting`], [`DataError::TooShort`] where the part does not fill one batch.
    pub fn new(corpus: &'a Corpus, part: Part, options: SamplerOptions) -> Result<Self> {
        for (field, value) in [("batch", options.batch), ("seq_len", options.seq_len)] {
            if value == 0 || value > 1 << 32 {
                return Err(setting(field, value, "1 to 2^32"));
            }
        }
        // Every epoch starts at another token; the last start leaves the fewest windows.
        let fewest = Windows::new(corpus.stretches(part), options.seq_len, options.seq_len - 1);
        if fewest.count < options.batch {
            let needed = (options.batch + 1) * options.seq_len + 1;
            let tokens = corpus.part_len(part) as u64;
            let why = "one batch of windows in every epoch";
            return Err(DataError::TooShort {
                path: corpus.path().to_owned(),
                tokens,
                needed: needed as u64,
                why,
            });
        }
        let position = DataPosition { epoch: 0, batch: 0 };
        let windows = Self::windows_of(corpus, part, &options, 0);
        Ok(Self { corpus, part, options, position, windows })
    }

    fn windows_of(corpus: &Corpus, part: Part, options: &SamplerOptions, epoch: u64) -> Windows {
        let shift =
            if options.stateful { 0 } else { mix(options.seed ^ mix(epoch)) % options.seq_len as u64 };
        Windows::new(corpus.stretches(part), options.seq_len, shift as usize)
    }

    /// Batches of an epoch at the current position.
    pub fn batches_per_epoch(&self) -> u64 {
        (self.windows.count / self.options.batch) as u64
    }

    /// Where the sampler stands.
    pub fn position(&self) -> DataPosition {
        self.position
    }

    /// Goes on from a position.
    ///
    /// # Errors
    /// [`DataError::Setting`] where the epoch has no such batch; the sampler stays where it was.
    pub fn seek(&mut self, position: DataPosition) -> Result<()> {
        let windows = Self::windows_of(self.corpus, self.part, &self.options, position.epoch);
        if position.batch > (windows.count / self.options.batch) as u64 {
            return Err(setting(
                "position.batch",
                position.batch,
                "within the epoch: is this another data set?",
            ));
        }
        (self.position, self.windows) = (position, windows);
        Ok(())
    }

    /// The next batch. An epoch's last windows that fill no batch are left out; the next epoch shuffles anew.
    pub fn next_batch(&mut self) -> LmBatch {
        if self.position.batch >= self.batches_per_epoch() {
            self.position = DataPosition { epoch: self.position.epoch + 1, batch: 0 };
            self.windows = Self::windows_of(self.corpus, self.part, &self.options, self.position.epoch);
        }
        let SamplerOptions { batch, seq_len, seed, stateful } = self.options;
        let per_row = self.batches_per_epoch();
        let order = Shuffle::new(self.windows.count as u64, seed, self.position.epoch);
        let mut rows = Vec::with_capacity(batch);
        let mut fresh = vec![false; batch];
        for row in 0..batch as u64 {
            let index = if stateful {
                row * per_row + self.position.batch
            } else {
                order.get(self.position.batch * batch as u64 + row)
            };
            let start = self.windows.start(index as usize);
            if stateful {
                // A stream starts afresh where it does not go on from its window before.
                let before = index.checked_sub(1).filter(|_| self.position.batch > 0);
                let goes_on = before.is_some_and(|b| self.windows.start(b as usize) + seq_len == start);
                fresh[row as usize] = !goes_on;
            }
            rows.push(start);
        }
        self.position.batch += 1;
        let mut out = collect(self.corpus, &rows, seq_len);
        if stateful && fresh.contains(&true) {
            let reset = out.reset.get_or_insert_with(|| vec![0; batch * seq_len]);
            fresh.iter().enumerate().filter(|(_, f)| **f).for_each(|(row, _)| reset[row * seq_len] = 1);
        }
        out
    }
}

/// At most `limit` batches spread evenly over a part, in order, each made when it is asked for; the last may be padded with
/// ignored targets.
pub fn evenly_spread(
    corpus: &Corpus,
    part: Part,
    batch: usize,
    seq_len: usize,
    limit: usize,
) -> impl ExactSizeIterator<Item = LmBatch> {
    let windows = Windows::new(corpus.stretches(part), seq_len, 0);
    let wanted = limit.saturating_mul(batch).min(windows.count);
    let batch = batch.max(1);
    (0..wanted.div_ceil(batch)).map(move |index| {
        let rows = index * batch..wanted.min((index + 1) * batch);
        let starts: Vec<usize> = rows.map(|i| windows.start(i * windows.count / wanted)).collect();
        let mut out = collect(corpus, &starts, seq_len);
        out.inputs.resize(batch * seq_len, 0);
        out.targets.resize(batch * seq_len, IGNORE_INDEX);
        if let Some(reset) = &mut out.reset {
            reset.resize(batch * seq_len, 0);
        }
        out
    })
}

/// Windows that start at these tokens.
fn collect(corpus: &Corpus, starts: &[usize], seq_len: usize) -> LmBatch {
    let n = starts.len() * seq_len;
    let (mut inputs, mut targets, mut reset) = (Vec::with_capacity(n), Vec::with_capacity(n), vec![0u8; n]);
    for (row, &start) in starts.iter().enumerate() {
        let tokens = corpus.read(start..start + seq_len + 1);
        for t in 0..seq_len {
            inputs.push(tokens.get(t).copied().unwrap_or(0));
            targets.push(tokens.get(t + 1).map_or(IGNORE_INDEX, |&id| id as i32));
            let after_separator =
                t > 0 && corpus.separator().is_some() && tokens.get(t - 1).copied() == corpus.separator();
            reset[row * seq_len + t] = u8::from(after_separator);
        }
    }
    LmBatch { inputs, targets, reset: reset.contains(&1).then_some(reset) }
}

/// Windows of `seq_len` inputs and one more target, end to end in every stretch.
#[derive(Debug)]
struct Windows {
    /// (windows before this stretch, first token)
    stretches: Vec<(usize, usize)>,
    seq_len: usize,
    count: usize,
}

impl Windows {
    fn new(stretches: &[Range<usize>], seq_len: usize, shift: usize) -> Self {
        let mut this = Self { stretches: Vec::new(), seq_len, count: 0 };
        for r in stretches {
            let windows = r.len().saturating_sub(1 + shift) / seq_len;
            if windows > 0 {
                this.stretches.push((this.count, r.start + shift));
                this.count += windows;
            }
        }
        this
    }

    fn start(&self, index: usize) -> usize {
        let at = self.stretches.partition_point(|&(before, _)| before <= index).saturating_sub(1);
        self.stretches.get(at).map_or(0, |&(before, first)| first + (index - before) * self.seq_len)
    }
}

/// The finaliser of SplitMix64: a bijection of 64 bits that spreads every input bit.
pub(crate) fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seeded permutation of 0..n that is computed, not stored: a balanced Feistel network over the next even power of two,
/// walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
#[derive(Debug, Clone, Copy)]
pub struct Shuffle {
    n: u64,
    half: u32,
    key: u64,
}

impl Shuffle {
    /// The permutation of an epoch.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Self { n, half: bits.div_ceil(2).max(1), key: mix(seed ^ mix(epoch ^ 0x5eed)) }
    }

    /// Where index `i` below n goes.
    pub fn get(&self, i: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut x = i;
        loop {
            let (mut left, mut right) = (x >> self.half, x & mask);
            for round in 0..4u64 {
                (left, right) =
                    (right, left ^ mix(self.key ^ right.wrapping_mul(4).wrapping_add(round)) & mask);
            }
            x = left << self.half | right;
            if x < self.n {
                return x;
            }
        }
    }
}
