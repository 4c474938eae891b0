use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use crate::registry::Kernels;
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

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

/// Narrower rows are read twice: the second time they come from the L2.
const STAGED_COLUMNS: i64 = 16_384;

/// Shared memory that a block may use, without the kernel's own kilobyte.
fn shared_limit(capability: (i32, i32)) -> usize {
    let kilobytes = match capability {
        (8, 0 | 7) => 163,
        (9..=11, _) => 227,
        _ => 99,
    };
    (kilobytes - 1) << 10
}

impl<'a, O: Elem> CrossEntropy<'a, O> {
    /// Starts the kernel; with a gradient of wide rows the one that reads them once, where a row fits on the chip.
    ///
    /// # Errors
    /// [`KernelError::Length`](crate::KernelError::Length), [`KernelError::Size`](crate::KernelError::Size), those of
    /// the driver.
    pub fn launch(self, kernels: &Kernels) -> Result<()> {
        self.check()?;
        let info = kernels.gpu().info();
        let limit = shared_limit(info.capability);
        let fits = self.columns.0 as usize * size_of::<f32>() <= limit;
        if !fits || self.columns.0 < STAGED_COLUMNS || !self.aligned() || self.d_logits.is_none() {
            return Launch::launch(self, kernels);
        }
        let Self { logits, targets, weights, scale, nll, columns, rows, .. } = self;
        let Some(d_logits) = self.d_logits else { return Ok(()) };
        let (blocks, marker) = (info.multiprocessors, PhantomData);
        let rows = Val(rows as i64);
        CrossEntropyStaged {
            logits,
            targets,
            weights,
            scale,
            nll,
            d_logits,
            columns,
            rows,
            limit,
            blocks,
            marker,
        }
        .launch(kernels)
    }

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
    /// [`CrossEntropy`] with the gradient of wide rows: `kernels/loss/staged.cu`.
    pub struct CrossEntropyStaged['a, O: Elem] = "cross_entropy_staged", |_this| format!("<{}>", O::CPP); {
        /// `[rows, columns]`.
        logits: View<'a, f32>,
        /// `[rows]`.
        targets: View<'a, i32>,
        /// `[rows]`; absent: all 1.
        weights: Option<View<'a, f32>>,
        /// One value.
        scale: View<'a, f32>,
        /// `[rows]`.
        nll: ViewMut<'a, f32>,
        /// `[rows, columns]`.
        d_logits: ViewMut<'a, O>,
        /// Width of a row, a multiple of 4.
        columns: Val<i64>,
        /// Number of rows.
        rows: Val<i64>,
    }
    host: {
        /// Shared memory that a row may take, in bytes.
        limit: usize,
        /// Blocks at most; no result depends on it.
        blocks: usize,
    }
}

impl<O: Elem> Launch for CrossEntropyStaged<'_, O> {
    fn check(&self) -> Result<()> {
        let columns = self.columns.0 as usize;
        ensure(columns.is_multiple_of(4), Self::NAME, "columns", columns, "a multiple of 4")?;
        ensure(columns * size_of::<f32>() <= self.limit, Self::NAME, "columns", columns, "a row that fits")?;
        let cells = self.rows.0 as usize * columns;
        need(Self::NAME, "logits", self.logits.len(), cells)?;
        need(Self::NAME, "d_logits", self.d_logits.len(), cells)
    }

    fn dims(&self) -> Dims {
        let blocks = (self.rows.0 as usize).min(self.blocks);
        let shared = self.columns.0 as usize * size_of::<f32>();
        Dims { grid: [blocks as u32, 1, 1], block: 1024, shared: shared as u32 }
    }

    fn max_shared(&self) -> usize {
        self.limit
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
