use super::table::ParamTable;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use std::sync::Arc;

/// A model's weights: one flat f32 arena, laid out by its [`ParamTable`].
#[derive(Clone, PartialEq)]
pub struct MambaWeights {
    config: ModelConfig,
    table: Arc<ParamTable>,
    data: Vec<f32>,
}

impl std::fmt::Debug for MambaWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MambaWeights").field("config", &self.config).finish_non_exhaustive()
    }
}

impl MambaWeights {
    /// Seeded initial weights; the same seed gives the same bits on every machine.
    ///
    /// # Errors
    /// Those of [`ParamTable::new`].
    pub fn init(config: &ModelConfig, seed: u64) -> Result<Self> {
        let mut weights = Self::zeros(config)?;
        for p in weights.table.iter() {
            p.init.fill(seed, &p.name, p.span.of_mut(&mut weights.data));
        }
        Ok(weights)
    }

    /// All zeros; a starting point for loading.
    ///
    /// # Errors
    /// Those of [`ParamTable::new`].
    pub fn zeros(config: &ModelConfig) -> Result<Self> {
        let table = Arc::new(ParamTable::new(config)?);
        let data = vec![0.0; table.arena_len()];
        Ok(Self { config: config.clone(), table, data })
    }

    /// Weights from an arena laid out by the config's table.
    ///
    /// # Errors
    /// [`ModelError::Length`] for another length than `ParamTable::arena_len`.
    pub fn from_arena(config: &ModelConfig, data: Vec<f32>) -> Result<Self> {
        let table = Arc::new(ParamTable::new(config)?);
        check_arena(&table, "weights", &data)?;
        Ok(Self { config: config.clone(), table, data })
    }

    /// The model they belong to.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names and places of the tensors.
    pub fn table(&self) -> &Arc<ParamTable> {
        &self.table
    }

    /// The whole arena, gaps included.
    pub fn arena(&self) -> &[f32] {
        &self.data
    }

    /// Takes the arena out.
    pub fn into_arena(self) -> Vec<f32> {
        self.data
    }

    /// One tensor by name.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`].
    pub fn get(&self, name: &str) -> Result<&[f32]> {
        Ok(self.table.get(name)?.span.of(&self.data))
    }

    /// Overwrites one tensor.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`], [`ModelError::Shape`] where the length differs.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let param = self.table.get(name)?;
        if values.len() != param.span.len {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                got: vec![values.len()],
                expected: param.shape.clone(),
            });
        }
        param.span.of_mut(&mut self.data).copy_from_slice(values);
        Ok(())
    }

    /// Checks that every weight is finite.
    ///
    /// # Errors
    /// [`ModelError::NonFinite`] naming the first tensor and index.
    pub fn check_finite(&self) -> Result<()> {
        for p in self.table.iter() {
            if let Some(index) = p.span.of(&self.data).iter().position(|v| !v.is_finite()) {
                let value = p.span.of(&self.data)[index];
                return Err(ModelError::NonFinite { name: p.name.clone(), index, value });
            }
        }
        Ok(())
    }
}

/// Checks that a flat arena has the table's length.
pub(crate) fn check_arena(table: &ParamTable, name: &'static str, data: &[f32]) -> Result<()> {
    if data.len() == table.arena_len() {
        return Ok(());
    }
    let (got, expected) = (data.len(), table.arena_len());
    Err(ModelError::Length { name, got, expected, layout: "flat arena, see ParamTable" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MambaConfig;

    #[test]
    fn init_is_seeded_and_finite() {
        let config = ModelConfig::backbone(MambaConfig::new(24, 2).with_input_dim(10));
        let (a, b) = (MambaWeights::init(&config, 1).unwrap(), MambaWeights::init(&config, 1).unwrap());
        assert_eq!(a, b);
        a.check_finite().unwrap();
        assert_ne!(a, MambaWeights::init(&config, 2).unwrap());
        assert_eq!(a.get("layers.1.D").unwrap(), [1.0; 48]);
        let w = a.get("layers.0.out_proj").unwrap();
        let bound = (1.0 / (48.0f64 * 2.0).sqrt()) as f32;
        let largest = w.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert!(largest <= bound && largest > 0.98 * bound, "{largest} vs {bound}");
    }

    #[test]
    fn non_finite_weights_are_named() {
        let config = ModelConfig::backbone(MambaConfig::new(8, 1));
        let mut w = MambaWeights::init(&config, 1).unwrap();
        let mut d = w.get("layers.0.D").unwrap().to_vec();
        d[3] = f32::NAN;
        w.set("layers.0.D", &d).unwrap();
        let err = w.check_finite().unwrap_err().to_string();
        assert!(err.contains("layers.0.D") && err.contains("index 3"), "{err}");
        assert!(w.set("layers.0.D", &[0.0]).is_err());
    }
}
