use super::shape::ScanShape;
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, need};
use mamba_cuda::{Dims, View, ViewMut};

crate::kernel! {
    /// Gradients of B and C from the backward's partials, in channel order.
    pub struct FoldStates['a, T: Elem] = "scan_fold_states", |_this| format!("<{}>", T::CPP); {
        /// What [`ScanBackward`](super::ScanBackward) left.
        partial: View<'a, f32>,
        /// `[tokens, 2 · states]`, B then C, tokens `ld` apart; overwritten.
        d_bc: ViewMut<'a, T>,
        /// Number of tokens.
        tokens: Val<i64>,
        /// `ScanShape::channel_blocks`.
        blocks: Val<i32>,
        /// States.
        states: Val<i32>,
        /// `ScanShape::padded_states`.
        padded: Val<i32>,
        /// Elements between tokens of d_bc.
        ld: Val<i64>,
    }
    host: {
        /// Sizes of the scan.
        shape: ScanShape,
    }
}

impl<T: Elem> Launch for FoldStates<'_, T> {
    fn check(&self) -> Result<()> {
        let s = &self.shape;
        need(Self::NAME, "partial", self.partial.len(), s.partial_len())?;
        need(Self::NAME, "d_bc", self.d_bc.len(), s.extent(self.ld.0 as usize, 2 * s.states))
    }

    fn dims(&self) -> Dims {
        let cells = self.tokens.0 as u64 * 2 * self.padded.0 as u64;
        Dims { grid: [cells.div_ceil(256).min(1 << 20) as u32, 1, 1], block: 256, shared: 0 }
    }
}
