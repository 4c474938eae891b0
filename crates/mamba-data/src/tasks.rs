//! The two synthetic tasks of the Mamba paper (Gu, Dao, 2023, section 4.1), as endless seeded batches.

use crate::error::{Result, setting};
use crate::sampler::{IGNORE_INDEX, LmBatch, mix};

/// Selective copying: `data` tokens stand at random places among noise; after the sequence the model must name them in
/// order, one at each copy marker. Token 0 is noise, 1 the marker, the rest are data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectiveCopying {
    /// Tokens in the vocabulary, at least 3.
    pub vocab_size: usize,
    /// Length of the part with noise.
    pub length: usize,
    /// Data tokens to remember, 1 to `length`.
    pub data: usize,
}

/// Induction heads: a special token stands at a random place, some token follows it; at the end the special token comes
/// again, and the model must name what followed it. The special token is the last of the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InductionHeads {
    /// Tokens in the vocabulary, at least 3.
    pub vocab_size: usize,
    /// Length of the sequence, at least 4.
    pub length: usize,
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0) % n as u64) as usize
    }
}

fn check(field: &'static str, value: usize, least: usize, expected: &'static str) -> Result<()> {
    if value >= least { Ok(()) } else { Err(setting(field, value, expected)) }
}

impl SelectiveCopying {
    /// Tokens of a row.
    pub fn seq_len(&self) -> usize {
        self.length + self.data
    }

    /// Batch number `index` of a seed.
    ///
    /// # Errors
    /// [`DataError::Setting`](crate::DataError::Setting).
    pub fn batch(&self, rows: usize, seed: u64, index: u64) -> Result<LmBatch> {
        check("vocab_size", self.vocab_size, 3, "at least 3: noise, marker, data")?;
        check("data", self.data, 1, "at least 1")?;
        check("length", self.length, self.data, "at least the number of data tokens")?;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in 0..rows as u64 {
            let mut draws = Draws(mix(seed ^ mix(index ^ row << 32)));
            let mut places: Vec<usize> = (0..self.length).collect();
            for i in 0..self.data {
                places.swap(i, i + draws.below(self.length - i));
            }
            places.truncate(self.data);
            places.sort_unstable();
            let mut sequence = vec![0u32; self.length];
            let data: Vec<u32> = places.iter().map(|_| 2 + draws.below(self.vocab_size - 2) as u32).collect();
            places.iter().zip(&data).for_each(|(&p, &d)| sequence[p] = d);
            inputs.extend(&sequence);
            inputs.extend(std::iter::repeat_n(1, self.data));
            targets.extend(std::iter::repeat_n(IGNORE_INDEX, self.length));
            targets.extend(data.iter().map(|&d| d as i32));
        }
        Ok(LmBatch { inputs, targets, reset: None })
    }
}

impl InductionHeads {
    /// Batch number `index` of a seed.
    ///
    /// # Errors
    /// [`DataError::Setting`](crate::DataError::Setting).
    pub fn batch(&self, rows: usize, seed: u64, index: u64) -> Result<LmBatch> {
        check("vocab_size", self.vocab_size, 3, "at least 3")?;
        check("length", self.length, 4, "at least 4")?;
        let special = self.vocab_size as u32 - 1;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in 0..rows as u64 {
            let mut draws = Draws(mix(seed ^ mix(index ^ row << 32)));
            let mut sequence: Vec<u32> =
                (0..self.length).map(|_| draws.below(self.vocab_size - 1) as u32).collect();
            let place = draws.below(self.length - 3);
            sequence[place] = special;
            let answer = sequence[place + 1] as i32;
            sequence[self.length - 1] = special;
            inputs.extend(&sequence);
            targets.extend(std::iter::repeat_n(IGNORE_INDEX, self.length - 1));
            targets.push(answer);
        }
        Ok(LmBatch { inputs, targets, reset: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_comes_back_in_order() {
        let task = SelectiveCopying { vocab_size: 16, length: 50, data: 8 };
        let batch = task.batch(5, 1, 9).unwrap();
        for row in 0..5 {
            let inputs = &batch.inputs[row * 58..(row + 1) * 58];
            let data: Vec<i32> = inputs[..50].iter().filter(|&&t| t > 1).map(|&t| t as i32).collect();
            assert_eq!(data, batch.targets[row * 58 + 50..(row + 1) * 58]);
            assert!(inputs[50..].iter().all(|&t| t == 1));
        }
        assert_eq!(batch, task.batch(5, 1, 9).unwrap());
        assert_ne!(batch, task.batch(5, 1, 10).unwrap());
        assert!(SelectiveCopying { data: 51, ..task }.batch(1, 1, 1).is_err());
    }

    #[test]
    fn the_answer_followed_the_special_token() {
        let task = InductionHeads { vocab_size: 16, length: 32 };
        let batch = task.batch(64, 3, 0).unwrap();
        for row in 0..64 {
            let inputs = &batch.inputs[row * 32..(row + 1) * 32];
            let first = inputs.iter().position(|&t| t == 15).unwrap();
            assert!(first < 29 && inputs[31] == 15);
            assert_eq!(inputs[first + 1] as i32, batch.targets[row * 32 + 31]);
        }
    }
}
