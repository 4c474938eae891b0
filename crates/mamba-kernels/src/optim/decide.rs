use super::norm::blocks;
use super::state::{TailInputs, TailState};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use mamba_cuda::{Dims, View, ViewMut};

crate::kernel! {
    /// Norm, overflow, skip, clip; then step count, loss scale and the ring of norms. [`AdamW`](super::AdamW) reads what it
    /// writes.
    pub struct Decide['a] = "decide", |_this| ""; {
        /// From [`GradSums`](super::GradSums).
        partial: View<'a, f64>,
        /// From [`GradSums`](super::GradSums).
        bad: View<'a, u32>,
        /// From [`SpanClip`](super::SpanClip); absent: there are no control spans.
        control_norm: Option<View<'a, f64>>,
        /// One value.
        inputs: View<'a, TailInputs>,
        /// One value.
        state: ViewMut<'a, TailState>,
        /// Ring of the applied steps' norms; where it begins and ends is in the state.
        norms: ViewMut<'a, f64>,
        /// One value: follows the state's scale.
        loss_scale: ViewMut<'a, f32>,
        /// Number of partial sums.
        blocks: Val<i64>,
        /// Length of the ring.
        capacity: Val<u32>,
    }
    host: {
        /// Elements of the arena.
        len: usize,
    }
}

impl Launch for Decide<'_> {
    fn check(&self) -> Result<()> {
        let count = blocks(self.len);
        let right = self.blocks.0 == count as i64;
        ensure(right, Self::NAME, "blocks", self.blocks.0 as usize, "the blocks of the arena")?;
        need(Self::NAME, "partial", self.partial.len(), count)?;
        need(Self::NAME, "bad", self.bad.len(), count)?;
        need(Self::NAME, "control_norm", self.control_norm.map_or(1, |n| n.len()), 1)?;
        need(Self::NAME, "inputs", self.inputs.len(), 1)?;
        need(Self::NAME, "state", self.state.len(), 1)?;
        need(Self::NAME, "norms", self.norms.len(), self.capacity.0 as usize)?;
        ensure(self.capacity.0 > 0, Self::NAME, "capacity", 0, "at least 1")?;
        need(Self::NAME, "loss_scale", self.loss_scale.len(), 1)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [1, 1, 1], block: 1024, shared: 0 }
    }
}
