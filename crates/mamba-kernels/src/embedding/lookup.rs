use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use crate::registry::Kernels;
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

const THREADS: u32 = 256;
/// Sorted positions that one block sums.
const RUN: usize = 32;

crate::kernel! {
    /// out`[t, :]` = table`[ids[t], :]`.
    pub struct EmbeddingForward['a, W: Elem] = "embedding_forward", |_this| format!("<{}>", W::CPP); {
        /// `[rows, dim]`.
        table: View<'a, W>,
        /// `[tokens]`, below `rows`.
        ids: View<'a, u32>,
        /// `[tokens, dim]`.
        out: ViewMut<'a, f32>,
        /// Width of a row.
        dim: Val<i64>,
    }
    host: {
        /// Number of tokens.
        tokens: usize,
    }
}

impl<W: Elem> Launch for EmbeddingForward<'_, W> {
    fn check(&self) -> Result<()> {
        ensure(self.tokens < 1 << 31, Self::NAME, "tokens", self.tokens, "below 2^31")?;
        need(Self::NAME, "ids", self.ids.len(), self.tokens)?;
        need(Self::NAME, "out", self.out.len(), self.tokens * self.dim.0 as usize)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [self.tokens as u32, 1, 1], block: THREADS, shared: 0 }
    }
}

crate::kernel! {
    /// Occurrences of each id, added to `counts`.
    pub struct Count['a] = "embedding_count", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[rows]`.
        counts: ViewMut<'a, i32>,
        /// Number of tokens.
        tokens: Val<i32>,
    }
}

impl Launch for Count<'_> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "ids", self.ids.len(), self.tokens.0 as usize)
    }
    fn dims(&self) -> Dims {
        Dims { grid: [(self.tokens.0 as u32).div_ceil(THREADS), 1, 1], block: THREADS, shared: 0 }
    }
}

crate::kernel! {
    /// Exclusive prefix sum in place.
    pub struct Starts['a] = "embedding_starts", |_this| ""; {
        /// `[rows]`.
        counts: ViewMut<'a, i32>,
        /// Number of rows.
        rows: Val<i32>,
    }
}

impl Launch for Starts<'_> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "counts", self.counts.len(), self.rows.0 as usize)
    }
    fn dims(&self) -> Dims {
        Dims { grid: [1, 1, 1], block: 1024, shared: 0 }
    }
}

crate::kernel! {
    /// Stable sort of the tokens by id.
    pub struct Sort['a] = "embedding_sort", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[rows]`.
        starts: View<'a, i32>,
        /// `[tokens]`.
        sorted: ViewMut<'a, i32>,
        /// Number of tokens.
        tokens: Val<i32>,
    }
}

impl Launch for Sort<'_> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "sorted", self.sorted.len(), self.tokens.0 as usize)
    }
    fn dims(&self) -> Dims {
        Dims { grid: [(self.tokens.0 as u32).div_ceil(THREADS), 1, 1], block: THREADS, shared: 0 }
    }
}

crate::kernel! {
    /// Sums of the ids inside runs of sorted positions.
    pub struct Runs['a] = "embedding_runs", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[tokens]`.
        sorted: View<'a, i32>,
        /// `[tokens, dim]`.
        d_out: View<'a, f32>,
        /// `[rows, dim]`.
        d_table: ViewMut<'a, f32>,
        /// `[runs, 2, dim]`.
        edges: ViewMut<'a, f32>,
        /// Number of tokens.
        tokens: Val<i32>,
        /// Width of a row.
        dim: Val<i64>,
    }
}

impl Launch for Runs<'_> {
    fn check(&self) -> Result<()> {
        let (tokens, dim) = (self.tokens.0 as usize, self.dim.0 as usize);
        need(Self::NAME, "d_out", self.d_out.len(), tokens * dim)?;
        need(Self::NAME, "edges", self.edges.len(), tokens.div_ceil(RUN) * 2 * dim)
    }
    fn dims(&self) -> Dims {
        Dims { grid: [(self.tokens.0 as u32).div_ceil(RUN as u32), 1, 1], block: THREADS, shared: 0 }
    }
}

crate::kernel! {
    /// Folds the ids that span several runs.
    pub struct Fold['a] = "embedding_fold", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[tokens]`.
        sorted: View<'a, i32>,
        /// `[runs, 2, dim]`.
        edges: View<'a, f32>,
        /// `[rows, dim]`.
        d_table: ViewMut<'a, f32>,
        /// Number of tokens.
        tokens: Val<i32>,
        /// Width of a row.
        dim: Val<i64>,
    }
}

impl Launch for Fold<'_> {
    fn check(&self) -> Result<()> {
        need(
            Self::NAME,
            "edges",
            self.edges.len(),
            (self.tokens.0 as usize).div_ceil(RUN) * 2 * self.dim.0 as usize,
        )
    }
    fn dims(&self) -> Dims {
        Dims { grid: [(self.tokens.0 as u32).div_ceil(RUN as u32), 1, 1], block: THREADS, shared: 0 }
    }
}

/// d_table`[ids[t], :]` += d_out`[t, :]`, summed in token order.
#[derive(Debug)]
pub struct EmbeddingBackward<'a> {
    /// `[tokens]`, below `rows`.
    pub ids: View<'a, u32>,
    /// `[tokens, dim]`.
    pub d_out: View<'a, f32>,
    /// `[rows, dim]`.
    pub d_table: ViewMut<'a, f32>,
    /// Scratch `[rows]`.
    pub counts: ViewMut<'a, i32>,
    /// Scratch `[tokens]`.
    pub sorted: ViewMut<'a, i32>,
    /// Scratch of [`EmbeddingBackward::edge_len`] elements.
    pub edges: ViewMut<'a, f32>,
    /// Width of a row.
    pub dim: usize,
}

impl EmbeddingBackward<'_> {
    /// Elements of the `edges` scratch.
    pub fn edge_len(tokens: usize, dim: usize) -> usize {
        tokens.div_ceil(RUN) * 2 * dim
    }

    /// Starts the five kernels.
    ///
    /// # Errors
    /// [`KernelError::Length`](crate::KernelError::Length), [`KernelError::Size`](crate::KernelError::Size), those of
    /// the driver.
    pub fn launch(mut self, kernels: &Kernels) -> Result<()> {
        let (tokens, rows) = (self.ids.len(), self.counts.len());
        ensure(tokens < 1 << 31, "embedding_backward", "tokens", tokens, "below 2^31")?;
        ensure(rows < 1 << 31, "embedding_backward", "rows", rows, "below 2^31")?;
        need("embedding_backward", "d_table", self.d_table.len(), rows * self.dim)?;
        let (count, dim, marker) = (Val(tokens as i32), Val(self.dim as i64), PhantomData);
        let ids = self.ids;
        self.counts.fill_bytes(0, kernels.gpu().compute())?;
        Count { ids, counts: self.counts.reborrow(), tokens: count, marker }.launch(kernels)?;
        Starts { counts: self.counts.reborrow(), rows: Val(rows as i32), marker }.launch(kernels)?;
        let starts = self.counts.as_view();
        Sort { ids, starts, sorted: self.sorted.reborrow(), tokens: count, marker }.launch(kernels)?;
        let sorted = self.sorted.as_view();
        let (d_table, edges) = (self.d_table.reborrow(), self.edges.reborrow());
        Runs { ids, sorted, d_out: self.d_out, d_table, edges, tokens: count, dim, marker }
            .launch(kernels)?;
        let edges = self.edges.as_view();
        Fold { ids, sorted, edges, d_table: self.d_table, tokens: count, dim, marker }.launch(kernels)
    }
}
