//! Reading and replacing the parts of a trainer's state.

use crate::contract::Core;
use crate::engine::Arena;
use crate::error::Result;
use crate::metrics::NonFiniteGradient;
use mamba_model::{MambaWeights, RecurrentState};
use mamba_optim::{AdamWState, NormWindowConfig, ScalerState};

impl Core {
    pub fn snapshot_master(&mut self) -> Result<MambaWeights> {
        let data = self.engine.read(Arena::Master)?.into_owned();
        Ok(MambaWeights::from_arena(&self.ctx.model, data)?)
    }

    pub fn optimizer_state(&mut self) -> Result<AdamWState> {
        let step = self.engine.progress(crate::engine::Wait::Yes)?.step;
        let m = self.engine.read(Arena::M)?.into_owned();
        let v = self.engine.read(Arena::V)?.into_owned();
        Ok(AdamWState { m, v, step })
    }

    pub fn load_optimizer_state(&mut self, state: &AdamWState) -> Result<()> {
        self.refuse_graph("load_optimizer_state")?;
        self.refuse_window("load_optimizer_state")?;
        state.check(self.ctx.table.arena_len())?;
        self.write_optimizer_state(state)
    }

    /// Writes a checked state.
    pub fn write_optimizer_state(&mut self, state: &AdamWState) -> Result<()> {
        let (m, v) = (self.without_gaps(&state.m), self.without_gaps(&state.v));
        self.engine.write(Arena::M, &m)?;
        self.engine.write(Arena::V, &v)?;
        self.engine.set_step_count(state.step)
    }

    pub fn load_recurrent_state(&mut self, state: &RecurrentState) -> Result<()> {
        state.check(&self.ctx.model.backbone, self.ctx.session.batch)?;
        self.engine.set_recurrence(Some(state))?;
        self.cancel_pending();
        Ok(())
    }

    pub fn load_scaler_state(&mut self, state: Option<ScalerState>) -> Result<()> {
        self.refuse_graph("load_scaler_state")?;
        self.refuse_window("load_scaler_state")?;
        self.engine.set_scaler(state)
    }

    pub fn load_norm_history(&mut self, norms: &[f64]) -> Result<()> {
        self.refuse_graph("load_norm_history")?;
        self.refuse_window("load_norm_history")?;
        NormWindowConfig::default().check_norms(norms)?;
        self.engine.set_norms(norms)
    }

    pub fn first_non_finite_gradient(&mut self) -> Result<Option<NonFiniteGradient>> {
        let table = self.ctx.table.clone();
        let grads = self.engine.read(Arena::Grads)?;
        let found = table.iter().find_map(|p| {
            let tensor = p.span.of(&grads);
            let index = tensor.iter().position(|g| !g.is_finite())?;
            Some(NonFiniteGradient { tensor: p.name.clone(), index, value: tensor[index] })
        });
        Ok(found)
    }

    /// A copy of an arena whose alignment gaps are zero.
    pub fn without_gaps(&self, arena: &[f32]) -> Vec<f32> {
        let mut clean = vec![0.0; arena.len()];
        for param in self.ctx.table.iter() {
            param.span.of_mut(&mut clean).copy_from_slice(param.span.of(arena));
        }
        clean
    }
}
