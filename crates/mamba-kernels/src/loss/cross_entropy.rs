use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};

/// Σ over the counted tokens of a window.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct LossTotals {
    /// Σ weight · −log p(target), nats.
    pub nll: f64,
    /// Σ weight.
    pub weight: f64,
    /// Counted targets.
    pub tokens: u64,
}

impl CppType for LossTotals {
    const CPP: &'static str = "LossTotals";
}

crate::kernel! {
    /// Loss of each row of logits and, on request, its gradient.
    pub struct CrossEntropy['a, O: Elem] = "cross_entropy", |this| format!("<{}, {}>", O::CPP, this.aligned()); {
        /// `[rows, columns]`.
        logits: View<'a, f32>,
        /// `[rows]`, below `columns` or −100.
        targets: View<'a, i32>,
        /// `[rows]`; absent: all 1.
        weights: Option<View<'a, f32>>,
        /// One value: factor of the gradient.
        scale: View<'a, f32>,
        /// `[rows]`.
        nll: ViewMut<'a, f32>,
        /// `[rows, columns]`; absent: loss only.
        d_logits: Option<ViewMut<'a, O>>,
        /// Width of a row.
        columns: Val<i64>,
    }
    host: {
        /// Number of rows.
        rows: usize,
    }
}

impl<O: Elem> CrossEntropy<'_, O> {
    fn aligned(&self) -> bool {
        let gradient = self.d_logits.as_ref().is_none_or(|d| d.ptr().is_multiple_of(16));
        self.columns.0 % 4 == 0 && self.logits.ptr().is_multiple_of(16) && gradient
    }
}

impl<O: Elem> Launch for CrossEntropy<'_, O> {
    fn check(&self) -> Result<()> {
        let columns = self.columns.0;
        ensure(columns > 0 && columns < 1 << 31, Self::NAME, "columns", columns as usize, "1 to 2^31 - 1")?;
        ensure(self.rows < 1 << 31, Self::NAME, "rows", self.rows, "below 2^31")?;
        let cells = self.rows * columns as usize;
        need(Self::NAME, "logits", self.logits.len(), cells)?;
        need(Self::NAME, "targets", self.targets.len(), self.rows)?;
        need(Self::NAME, "weights", self.weights.map_or(self.rows, |w| w.len()), self.rows)?;
        need(Self::NAME, "scale", self.scale.len(), 1)?;
        need(Self::NAME, "nll", self.nll.len(), self.rows)?;
        need(Self::NAME, "d_logits", self.d_logits.as_ref().map_or(cells, ViewMut::len), cells)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [self.rows as u32, 1, 1], block: 512, shared: 0 }
    }
}

crate::kernel! {
    /// Adds the sums of one window to `totals`, in a fixed order.
    pub struct SumLoss['a] = "loss_totals", |_this| ""; {
        /// `[rows]`.
        nll: View<'a, f32>,
        /// `[rows]`.
        targets: View<'a, i32>,
        /// `[rows]`; absent: all 1.
        weights: Option<View<'a, f32>>,
        /// One value.
        totals: ViewMut<'a, LossTotals>,
        /// Number of rows.
        rows: Val<i64>,
    }
}

impl Launch for SumLoss<'_> {
    fn check(&self) -> Result<()> {
        let rows = self.rows.0 as usize;
        need(Self::NAME, "nll", self.nll.len(), rows)?;
        need(Self::NAME, "targets", self.targets.len(), rows)?;
        need(Self::NAME, "weights", self.weights.map_or(rows, |w| w.len()), rows)?;
        need(Self::NAME, "totals", self.totals.len(), 1)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [1, 1, 1], block: 1024, shared: 0 }
    }
}
