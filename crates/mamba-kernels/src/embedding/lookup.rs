use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use crate::registry::Kernels;
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

const THREADS: u32 = 256;
/// Sorted positions that one block sums.
const RUN: usize = 32;
/// Tokens of a block of the look-up.
const TOKENS: usize = 4;
/// Earlier tokens that a block of the ranking looks at.
const WINDOW: usize = 1024;
/// Most tokens of a gradient, bounded by the grid of the ranking.
const MAX_TOKENS: usize = 65_535 * WINDOW;

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
        /// Number of tokens.
        tokens: Val<i32>,
    }
}

impl<W: Elem> Launch for EmbeddingForward<'_, W> {
    fn check(&self) -> Result<()> {
        let tokens = self.tokens.0 as usize;
        ensure(tokens < 1 << 31, Self::NAME, "tokens", tokens, "below 2^31")?;
        need(Self::NAME, "ids", self.ids.len(), tokens)?;
        need(Self::NAME, "out", self.out.len(), tokens * self.dim.0 as usize)
    }

    fn dims(&self) -> Dims {
        let blocks = (self.tokens.0 as u32).div_ceil(TOKENS as u32);
        Dims { grid: [blocks, 1, 1], block: THREADS, shared: 0 }
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
    /// How many earlier tokens have the same id, added to `ranks`.
    pub struct Ranks['a] = "embedding_ranks", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[tokens]`.
        ranks: ViewMut<'a, i32>,
        /// Number of tokens.
        tokens: Val<i32>,
    }
}

impl Launch for Ranks<'_> {
    fn check(&self) -> Result<()> {
        let tokens = self.tokens.0 as usize;
        ensure(tokens <= MAX_TOKENS, Self::NAME, "tokens", tokens, "at most 67,107,840")?;
        need(Self::NAME, "ranks", self.ranks.len(), tokens)
    }
    fn dims(&self) -> Dims {
        let tokens = self.tokens.0 as u32;
        Dims {
            grid: [tokens.div_ceil(THREADS), tokens.div_ceil(WINDOW as u32), 1],
            block: THREADS,
            shared: 0,
        }
    }
}

crate::kernel! {
    /// Stable sort of the tokens by id.
    pub struct Place['a] = "embedding_place", |_this| ""; {
        /// `[tokens]`.
        ids: View<'a, u32>,
        /// `[rows]`.
        starts: View<'a, i32>,
        /// `[tokens]`.
        ranks: View<'a, i32>,
        /// `[tokens]`.
        sorted: ViewMut<'a, i32>,
        /// Number of tokens.
        tokens: Val<i32>,
    }
}

impl Launch for Place<'_> {
    fn check(&self) -> Result<()> {
        need(Self::NAME, "ranks", self.ranks.len(), self.tokens.0 as usize)?;
        need(Self::NAME, "sorted", self.sorted.len(), self.tokens.0 as usize)
    }
    fn dims(&self) -> Dims {
        Dims { grid: [(self.tokens.0 as u32).div_ceil(THREADS), 1, 1], block: THREADS, shared: 0 }
    }
}

/// Blocks over runs of sorted positions and columns.
fn run_dims(tokens: i32, dim: i64) -> Dims {
    let columns = (dim as u64).div_ceil(u64::from(THREADS)) as u32;
    Dims { grid: [(tokens as u32).div_ceil(RUN as u32), columns, 1], block: THREADS, shared: 0 }
}

/// The grid's second axis is short.
fn check_dim(kernel: &'static str, dim: i64) -> Result<()> {
    ensure((1..=1 << 23).contains(&dim), kernel, "dim", dim as usize, "1 to 2^23")
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
        check_dim(Self::NAME, self.dim.0)?;
        let (tokens, dim) = (self.tokens.0 as usize, self.dim.0 as usize);
        need(Self::NAME, "d_out", self.d_out.len(), tokens * dim)?;
        need(Self::NAME, "edges", self.edges.len(), tokens.div_ceil(RUN) * 2 * dim)
    }
    fn dims(&self) -> Dims {
        run_dims(self.tokens.0, self.dim.0)
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
        run_dims(self.tokens.0, self.dim.0)
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
    /// Scratch `[2 · tokens]`.
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

    /// Starts the six kernels.
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
        need("embedding_backward", "sorted", self.sorted.len(), 2 * tokens)?;
        let stream = kernels.gpu().compute();
        let (mut ranks, mut sorted) = self.sorted.split_at(tokens)?;
        self.counts.fill_bytes(0, stream)?;
        ranks.fill_bytes(0, stream)?;
        Count { ids, counts: self.counts.reborrow(), tokens: count, marker }.launch(kernels)?;
        Ranks { ids, ranks: ranks.reborrow(), tokens: count, marker }.launch(kernels)?;
        Starts { counts: self.counts.reborrow(), rows: Val(rows as i32), marker }.launch(kernels)?;
        let (starts, ranks) = (self.counts.as_view(), ranks.as_view());
        Place { ids, starts, ranks, sorted: sorted.reborrow(), tokens: count, marker }.launch(kernels)?;
        let sorted = sorted.as_view();
        let (d_table, edges) = (self.d_table.reborrow(), self.edges.reborrow());
        Runs { ids, sorted, d_out: self.d_out, d_table, edges, tokens: count, dim, marker }
            .launch(kernels)?;
        let edges = self.edges.as_view();
        Fold { ids, sorted, edges, d_table: self.d_table, tokens: count, dim, marker }.launch(kernels)
    }
}
