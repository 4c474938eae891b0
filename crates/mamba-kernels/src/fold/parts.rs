use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use mamba_cuda::{Dims, View, ViewMut};

crate::kernel! {
    /// out`[r, k]` += Σ over parts, in a fixed order, of partial`[part · stride + r · row_stride + k]`.
    pub struct FoldParts['a] = "fold_parts", |_this| ""; {
        /// The parts.
        partial: View<'a, f32>,
        /// `[len / cols, cols]`.
        out: ViewMut<'a, f32>,
        /// Elements of `out`.
        len: Val<i64>,
        /// Number of parts.
        parts: Val<i32>,
        /// Elements between parts.
        stride: Val<i64>,
        /// Columns of `out`.
        cols: Val<i32>,
        /// Elements between rows of a part.
        row_stride: Val<i64>,
    }
}

impl Launch for FoldParts<'_> {
    fn check(&self) -> Result<()> {
        let (len, cols) = (self.len.0 as usize, self.cols.0 as usize);
        ensure(cols > 0 && len.is_multiple_of(cols), Self::NAME, "cols", cols, "a divisor of len")?;
        need(Self::NAME, "out", self.out.len(), len)?;
        let rows = len / cols;
        let part = if rows == 0 { 0 } else { (rows - 1) * self.row_stride.0 as usize + cols };
        let all = (self.parts.0 as usize).saturating_sub(1) * self.stride.0 as usize + part;
        need(Self::NAME, "partial", self.partial.len(), all)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [(self.len.0 as u64).div_ceil(32).min(1 << 20) as u32, 1, 1], block: 256, shared: 0 }
    }
}
