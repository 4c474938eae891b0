//! What a model carries from one window to the next.

use crate::config::MambaConfig;
use crate::error::{ModelError, Result};
use serde::{Deserialize, Serialize};

/// Convolution windows and scan states of every layer, carried from window to window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecurrentState {
    /// `[n_layers, batch, d_inner, d_conv - 1]`: pre-convolution samples, oldest first.
    pub conv: Vec<f32>,
    /// `[n_layers, batch, d_inner, d_state]`: h after the last token.
    pub ssm: Vec<f32>,
}

impl RecurrentState {
    /// The empty state, as at the start of a sequence.
    pub fn zeros(config: &MambaConfig, batch: usize) -> Self {
        let (conv, ssm) = Self::lengths(config, batch);
        Self { conv: vec![0.0; conv], ssm: vec![0.0; ssm] }
    }

    /// Elements of (`conv`, `ssm`).
    pub fn lengths(config: &MambaConfig, batch: usize) -> (usize, usize) {
        let rows = config.n_layers * batch * config.d_inner();
        (rows * (config.d_conv - 1), rows * config.d_state)
    }

    /// Back to the empty state.
    pub fn reset(&mut self) {
        self.conv.fill(0.0);
        self.ssm.fill(0.0);
    }

    /// Checks lengths and finiteness against a model and batch.
    ///
    /// # Errors
    /// [`ModelError::Length`], [`ModelError::NonFinite`].
    pub fn check(&self, config: &MambaConfig, batch: usize) -> Result<()> {
        let (conv, ssm) = Self::lengths(config, batch);
        let parts = [
            ("conv", &self.conv, conv, "[n_layers, batch, d_inner, d_conv - 1]"),
            ("ssm", &self.ssm, ssm, "[n_layers, batch, d_inner, d_state]"),
        ];
        for (name, data, expected, layout) in parts {
            if data.len() != expected {
                return Err(ModelError::Length { name, got: data.len(), expected, layout });
            }
            if let Some((index, &value)) = data.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(ModelError::NonFinite { name: format!("state.{name}"), index, value });
            }
        }
        Ok(())
    }
}
