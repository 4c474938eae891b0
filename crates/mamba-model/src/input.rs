//! What goes into a forward pass, and what a loss reports.

use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use serde::{Deserialize, Serialize};

/// Targets of this value do not count in a loss.
pub const IGNORE_INDEX: i32 = -100;

/// One window of input.
#[derive(Debug, Clone, Copy)]
pub enum ModelInput<'a> {
    /// `[B, T, input_dim]`, or `[B, T, d_model]` where the model has no input projection.
    Dense(&'a [f32]),
    /// Token ids `[B, T]`, for a model with an embedding.
    Tokens(&'a [u32]),
}

impl ModelInput<'_> {
    /// Checks kind, length and token range against a model.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`], [`ModelError::Length`], [`ModelError::Token`].
    pub fn check(&self, config: &ModelConfig, batch: usize, seq_len: usize) -> Result<()> {
        let tokens = batch * seq_len;
        match (self, &config.lm) {
            (Self::Dense(x), None) => {
                let width = config.backbone.input_width();
                check_len("input", x.len(), tokens * width, "[batch, seq_len, input_dim]")
            }
            (Self::Tokens(ids), Some(lm)) => {
                check_len("input_ids", ids.len(), tokens, "[batch, seq_len]")?;
                match ids.iter().position(|&id| id as usize >= lm.vocab_size) {
                    Some(index) => {
                        let token = i64::from(ids[index]);
                        Err(ModelError::Token { token, index, vocab_size: lm.vocab_size })
                    }
                    None => Ok(()),
                }
            }
            (Self::Dense(_), Some(_)) => Err(ModelError::Unsupported {
                call: "a dense input",
                needs: "a bare backbone",
                has: "an embedding: give it token ids",
            }),
            (Self::Tokens(_), None) => Err(ModelError::Unsupported {
                call: "a token input",
                needs: "an embedding",
                has: "none: give it a dense input",
            }),
        }
    }
}

/// Sums over the counted tokens of one window; the mean loss is `nll / weight`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LossSums {
    /// Σ weight · −log p(target), in nats.
    pub nll: f64,
    /// Σ weight over counted targets (their number where no weights are given).
    pub weight: f64,
    /// Number of counted targets.
    pub tokens: u64,
}

impl LossSums {
    /// Mean negative log-likelihood in nats; NaN where nothing counts.
    pub fn mean(&self) -> f64 {
        self.nll / self.weight
    }

    /// Adds another window's sums.
    pub fn add(&mut self, other: &Self) {
        self.nll += other.nll;
        self.weight += other.weight;
        self.tokens += other.tokens;
    }
}

/// Checks the length of a flat buffer.
pub(crate) fn check_len(name: &'static str, got: usize, expected: usize, layout: &'static str) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(ModelError::Length { name, got, expected, layout }),
    }
}
