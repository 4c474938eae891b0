//! Matrix products.
//!
//! Two forms serve the whole step. [`Rows`]: C = A·B where the rows of A are tokens and B is a packed weight; each
//! element of C is one chain of fused multiply-adds over k in order, so its bits depend on its own row and column
//! only. [`Outer`]: C += Xᵀ·Y, a weight gradient; the tokens of [`DEPTH`] row tasks are one chain in order, and the
//! chains are added in order.

use super::buffer::Buffer;
use super::dims::{GROUP, ROWS, TILE};
use pulp::{Arch, Simd, WithSimd};

/// Columns of a packed panel.
const PANEL: usize = 32;
/// Row tasks in one chain of [`Outer`].
const DEPTH: usize = 2;
/// Rows of C in one [`Outer`] task.
pub(super) const OUTER_ROWS: usize = 64;

/// Where a row task's matrix lies: element (r, c) is at `c / cols · group + r · row + c % cols`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    cols: usize,
    group: usize,
    row: usize,
}

impl Layout {
    /// Tiles of 64 columns, `[column group, 64, 64]`.
    pub const TILED: Self = Self { cols: GROUP, group: TILE, row: GROUP };

    /// Row-major with `width` columns.
    pub const fn rows(width: usize) -> Self {
        Self { cols: width, group: 0, row: width }
    }

    /// `[column group, tokens, 64]`, from a row task's first row on.
    pub const fn grouped(tokens: usize) -> Self {
        Self { cols: GROUP, group: tokens * GROUP, row: GROUP }
    }

    /// Row-major with `width` columns, rows `stride` apart.
    pub const fn spaced(width: usize, stride: usize) -> Self {
        Self { cols: width, group: 0, row: stride }
    }

    #[inline(always)]
    fn at(&self, r: usize, c: usize) -> usize {
        c / self.cols * self.group + r * self.row + c % self.cols
    }

    /// Calls `f` on the pieces of row `r`, in column order, of a matrix with `width` columns.
    #[inline(always)]
    pub fn pieces_mut(&self, x: &mut [f32], r: usize, width: usize, mut f: impl FnMut(&mut [f32])) {
        for c in (0..width).step_by(self.cols) {
            f(&mut x[self.at(r, c)..][..self.cols.min(width - c)]);
        }
    }
}

/// A matrix `[k, n]` cut into panels of [`PANEL`] columns, `[panel][k][32]`; what lies outside it is zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Packed {
    data: Buffer,
    k: usize,
    n: usize,
}

impl Packed {
    pub fn new(k: usize, n: usize) -> Self {
        Self { data: Buffer::zeros(k * n.next_multiple_of(PANEL)), k, n }
    }

    /// Copies a `rows × cols` block with row stride `ld` to row `row` and column `col`.
    pub fn set(&mut self, (row, col): (usize, usize), src: &[f32], ld: usize, (rows, cols): (usize, usize)) {
        for (r, line) in src.chunks(ld).take(rows).enumerate() {
            let mut done = 0;
            while done < cols {
                let (panel, lane) = ((col + done) / PANEL, (col + done) % PANEL);
                let len = (cols - done).min(PANEL - lane);
                let at = (panel * self.k + row + r) * PANEL + lane;
                self.data[at..at + len].copy_from_slice(&line[done..done + len]);
                done += len;
            }
        }
    }

    /// Like [`Packed::set`] with the transpose of a `cols × rows` block.
    pub fn set_transposed(
        &mut self,
        (row, col): (usize, usize),
        src: &[f32],
        ld: usize,
        (rows, cols): (usize, usize),
    ) {
        for (c, line) in src.chunks(ld).take(cols).enumerate() {
            let (panel, lane) = ((col + c) / PANEL, (col + c) % PANEL);
            let out = &mut self.data[(panel * self.k + row) * PANEL..][..rows * PANEL];
            for (out, &v) in out.as_chunks_mut::<PANEL>().0.iter_mut().zip(line) {
                out[lane] = v;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }
}

/// Loads vector `i` of a row of lanes.
#[inline(always)]
pub(super) fn load<S: Simd>(row: &[f32], i: usize) -> S::f32s {
    S::as_simd_f32s(row).0[i]
}

/// Stores vector `i` of a row of lanes.
#[inline(always)]
pub(super) fn store<S: Simd>(row: &mut [f32], i: usize, v: S::f32s) {
    S::as_mut_simd_f32s(row).0[i] = v;
}

/// Replaces up to a vector's worth of `out` by `f` of it.
#[inline(always)]
fn update<S: Simd>(s: S, out: &mut [f32], f: impl FnOnce(S::f32s) -> S::f32s) {
    if out.len() == S::F32_LANES {
        store::<S>(out, 0, f(load::<S>(out, 0)));
    } else {
        let v = f(s.partial_load_f32s(out));
        s.partial_store_f32s(out, v);
    }
}

/// C = A·B (+ bias), or C += A·B, for the rows of one row task.
pub(super) struct Rows<'a> {
    pub a: &'a [f32],
    pub la: Layout,
    pub rows: usize,
    pub b: &'a Packed,
    pub c: &'a mut [f32],
    pub lc: Layout,
    pub out: Out<'a>,
}

/// What happens to a product.
#[derive(Clone, Copy)]
pub(super) enum Out<'a> {
    /// Overwrite.
    Set,
    /// Overwrite with the product plus a bias a column.
    Bias(&'a [f32]),
    /// Add to what is there.
    Add,
}

impl Rows<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    /// All rows of the `NV` vectors of columns from `at` on in the panel that starts at column `j`.
    #[inline(always)]
    fn strip<S: Simd, const NV: usize>(&mut self, s: S, j: usize, at: usize) {
        let mut r = 0;
        if S::REGISTER_COUNT >= 32 {
            while r + 8 <= self.rows {
                self.tile::<S, 8, NV>(s, j, at, r);
                r += 8;
            }
        }
        while r + 4 <= self.rows {
            self.tile::<S, 4, NV>(s, j, at, r);
            r += 4;
        }
        while r < self.rows {
            self.tile::<S, 1, NV>(s, j, at, r);
            r += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const MR: usize, const NV: usize>(&mut self, s: S, j: usize, at: usize, r: usize) {
        let b: &Packed = self.b;
        let panel = &b.data.as_chunks::<PANEL>().0[j / PANEL * b.k..][..b.k];
        let mut acc = [[s.splat_f32s(0.0); NV]; MR];
        for (g, panel) in panel.chunks(self.la.cols).enumerate() {
            let start = g * self.la.group + r * self.la.row;
            let a: [&[f32]; MR] = std::array::from_fn(|i| &self.a[start + i * self.la.row..][..panel.len()]);
            acc = chain(s, acc, a, panel, at / S::F32_LANES);
        }
        let col = j + at;
        let cols = (b.n - col).min(NV * S::F32_LANES);
        for (i, acc) in acc.iter().enumerate() {
            let out = &mut self.c[self.lc.at(r + i, col)..][..cols];
            for (v, (out, &x)) in out.chunks_mut(S::F32_LANES).zip(acc).enumerate() {
                match self.out {
                    Out::Set => update(s, out, |_| x),
                    Out::Add => update(s, out, |c| s.add_f32s(c, x)),
                    Out::Bias(bias) => {
                        let bias = &bias[col + v * S::F32_LANES..][..out.len()];
                        update(s, out, |_| s.add_f32s(x, s.partial_load_f32s(bias)));
                    }
                }
            }
        }
    }
}

/// Goes on with the chains of a register tile over the rows of `panel`.
#[inline(always)]
fn chain<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    mut acc: [[S::f32s; NV]; MR],
    a: [&[f32]; MR],
    panel: &[[f32; PANEL]],
    at: usize,
) -> [[S::f32s; NV]; MR] {
    for (p, b) in panel.iter().enumerate() {
        let b: [S::f32s; NV] = std::array::from_fn(|v| load::<S>(b, at + v));
        for i in 0..MR {
            let a = s.splat_f32s(a[i][p]);
            for v in 0..NV {
                acc[i][v] = s.mul_add_f32s(a, b[v], acc[i][v]);
            }
        }
    }
    acc
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        for j in (0..self.b.n).step_by(PANEL) {
            let cols = PANEL.min(self.b.n - j);
            let mut at = 0;
            while at < cols {
                if cols - at > S::F32_LANES {
                    self.strip::<S, 2>(s, j, at);
                    at += 2 * S::F32_LANES;
                } else {
                    self.strip::<S, 1>(s, j, at);
                    at += S::F32_LANES;
                }
            }
        }
    }
}

/// All row tasks of a matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    layout: Layout,
    /// Elements of a row task.
    task: usize,
}

impl<'a> Matrix<'a> {
    /// Tiled, with `groups` column groups of which this starts at `first`.
    pub fn tiled(data: &'a [f32], groups: usize, first: usize) -> Self {
        Self { data: &data[first * TILE..], layout: Layout::TILED, task: groups * TILE }
    }

    /// `[column group, tokens, 64]`.
    pub fn grouped(data: &'a [f32], tokens: usize) -> Self {
        Self { data, layout: Layout::grouped(tokens), task: TILE }
    }

    /// Row-major with `width` columns.
    pub fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, layout: Layout::rows(width), task: ROWS * width }
    }
}

impl Matrix<'_> {
    /// Adds all rows to `out`, in order.
    pub fn add_rows(&self, tokens: usize, out: &mut [f32]) {
        for m in 0..tokens {
            let at = m / ROWS * self.task;
            let mut done = 0;
            while done < out.len() {
                let row = &self.data[at + self.layout.at(m % ROWS, done)..];
                let len = self.layout.cols.min(out.len() - done);
                out[done..done + len].iter_mut().zip(row).for_each(|(o, v)| *o += v);
                done += len;
            }
        }
    }
}

/// C += Xᵀ·Y over all tokens, for the columns of X from `first` on.
pub(super) struct Outer<'a> {
    pub x: Matrix<'a>,
    pub first: usize,
    /// Tiled or grouped.
    pub y: Matrix<'a>,
    pub tokens: usize,
    pub rows: usize,
    pub cols: usize,
    pub c: &'a mut [f32],
    pub ldc: usize,
}

impl Outer<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    /// `MR` rows from `i` on, `NV` vectors of columns from `j` on, the tokens of the row tasks from `task` on.
    #[inline(always)]
    fn tile<S: Simd, const MR: usize, const NV: usize>(&mut self, s: S, task: usize, i: usize, j: usize) {
        let mut acc = [[s.splat_f32s(0.0); NV]; MR];
        let lane = j % GROUP / S::F32_LANES;
        let (layout, column) = (self.x.layout, self.first + i);
        let end = self.tokens.div_ceil(ROWS).min(task + DEPTH);
        for task in task..end {
            let len = ROWS.min(self.tokens - task * ROWS);
            let x = &self.x.data[task * self.x.task + layout.at(0, column)..];
            let y = &self.y.data[task * self.y.task + j / GROUP * self.y.layout.group..];
            let y = &y.as_chunks::<GROUP>().0[..len];
            acc = match layout.row {
                // A constant stride spares the inner loop its address arithmetic.
                GROUP => outer_chain::<S, MR, NV>(s, acc, x, GROUP, y, lane),
                row => outer_chain::<S, MR, NV>(s, acc, x, row, y, lane),
            };
        }
        let cols = (self.cols - j).min(NV * S::F32_LANES);
        for (m, acc) in acc.iter().enumerate() {
            let out = &mut self.c[(i + m) * self.ldc + j..][..cols];
            for (out, &x) in out.chunks_mut(S::F32_LANES).zip(acc) {
                update(s, out, |c| s.add_f32s(c, x));
            }
        }
    }

    #[inline(always)]
    fn strip<S: Simd, const NV: usize>(&mut self, s: S, task: usize, j: usize) {
        let mut i = 0;
        if S::REGISTER_COUNT >= 32 {
            while i + 8 <= self.rows {
                self.tile::<S, 8, NV>(s, task, i, j);
                i += 8;
            }
        }
        while i + 4 <= self.rows {
            self.tile::<S, 4, NV>(s, task, i, j);
            i += 4;
        }
        while i < self.rows {
            self.tile::<S, 1, NV>(s, task, i, j);
            i += 1;
        }
    }
}

/// Goes on with the chains of a register tile over the tokens of `y`; `x` holds a token every `row` elements.
#[inline(always)]
fn outer_chain<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    mut acc: [[S::f32s; NV]; MR],
    x: &[f32],
    row: usize,
    y: &[[f32; GROUP]],
    lane: usize,
) -> [[S::f32s; NV]; MR] {
    for (t, y) in y.iter().enumerate() {
        let x = &x[t * row..][..MR];
        let y: [S::f32s; NV] = std::array::from_fn(|v| load::<S>(y, lane + v));
        for i in 0..MR {
            let x = s.splat_f32s(x[i]);
            for v in 0..NV {
                acc[i][v] = s.mul_add_f32s(x, y[v], acc[i][v]);
            }
        }
    }
    acc
}

impl WithSimd for Outer<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        for task in (0..self.tokens.div_ceil(ROWS)).step_by(DEPTH) {
            let mut j = 0;
            while j < self.cols {
                if self.cols - j > S::F32_LANES {
                    self.strip::<S, 2>(s, task, j);
                    j += 2 * S::F32_LANES;
                } else {
                    self.strip::<S, 1>(s, task, j);
                    j += S::F32_LANES;
                }
            }
        }
    }
}
