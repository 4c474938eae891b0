//! Matrix products on packed panels.
//!
//! Two forms serve the whole step. [`Rows`]: C = A·B where the rows of A are tokens and B is a packed weight; each
//! element of C is one chain of fused multiply-adds over k in order, so its bits depend on its own row and column
//! only. [`Outer`]: C += Xᵀ·Y, a weight gradient; tokens are summed in blocks of [`TOKEN_BLOCK`], each block one
//! chain in order, blocks added in order.

use pulp::{Arch, Simd, WithSimd};

/// Columns of a packed panel.
pub(super) const PANEL: usize = 32;
/// Rows of a register tile.
const TILE: usize = 8;
/// Tokens of one chain in [`Outer`].
pub(super) const TOKEN_BLOCK: usize = 256;
/// Rows of C that share the packed panels of an [`Outer`] call.
pub(super) const OUTER_ROWS: usize = 64;

/// A matrix `[k, n]` cut into panels of [`PANEL`] columns, `[panel][k][32]`; what lies outside it is zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Packed {
    data: Vec<[f32; PANEL]>,
    k: usize,
    n: usize,
}

impl Packed {
    pub fn new(k: usize, n: usize) -> Self {
        Self { data: vec![[0.0; PANEL]; k * n.div_ceil(PANEL)], k, n }
    }

    /// Copies a `rows × cols` block with row stride `ld` to row `row` and column `col`.
    pub fn set(&mut self, (row, col): (usize, usize), src: &[f32], ld: usize, (rows, cols): (usize, usize)) {
        for (r, line) in src.chunks(ld).take(rows).enumerate() {
            let mut done = 0;
            while done < cols {
                let (panel, lane) = ((col + done) / PANEL, (col + done) % PANEL);
                let len = (cols - done).min(PANEL - lane);
                self.data[panel * self.k + row + r][lane..lane + len]
                    .copy_from_slice(&line[done..done + len]);
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
            let out = &mut self.data[panel * self.k + row..][..rows];
            for (out, &v) in out.iter_mut().zip(line) {
                out[lane] = v;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.data.len() * PANEL
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

/// C = A·B (+ bias), or C += A·B. `a` holds rows of stride `lda`, `c` rows of stride `ldc`.
pub(super) struct Rows<'a> {
    pub a: &'a [f32],
    pub lda: usize,
    pub rows: usize,
    pub b: &'a Packed,
    pub c: &'a mut [f32],
    pub ldc: usize,
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
        debug_assert!(self.lda >= self.b.k && self.ldc >= self.b.n);
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn panels<S: Simd>(&mut self, s: S) {
        for j in (0..self.b.n).step_by(PANEL) {
            let panel = &self.b.data[j / PANEL * self.b.k..][..self.b.k];
            let cols = PANEL.min(self.b.n - j);
            let mut at = 0;
            while at < cols {
                if cols - at > S::F32_LANES {
                    self.strip::<S, 2>(s, panel, j, at);
                    at += 2 * S::F32_LANES;
                } else {
                    self.strip::<S, 1>(s, panel, j, at);
                    at += S::F32_LANES;
                }
            }
        }
    }

    /// All rows of the `NV` vectors of columns from `at` on in the panel that starts at column `j`.
    #[inline(always)]
    fn strip<S: Simd, const NV: usize>(&mut self, s: S, panel: &[[f32; PANEL]], j: usize, at: usize) {
        let mut r = 0;
        if S::REGISTER_COUNT >= 32 {
            while r + 8 <= self.rows {
                self.tile::<S, 8, NV>(s, panel, j, at, r);
                r += 8;
            }
        }
        while r + 4 <= self.rows {
            self.tile::<S, 4, NV>(s, panel, j, at, r);
            r += 4;
        }
        while r < self.rows {
            self.tile::<S, 1, NV>(s, panel, j, at, r);
            r += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const MR: usize, const NV: usize>(
        &mut self,
        s: S,
        panel: &[[f32; PANEL]],
        j: usize,
        at: usize,
        r: usize,
    ) {
        let k = panel.len();
        let a: [&[f32]; MR] = std::array::from_fn(|i| &self.a[(r + i) * self.lda..][..k]);
        let mut acc = [[s.splat_f32s(0.0); NV]; MR];
        for (p, b) in panel.iter().enumerate() {
            let b: [S::f32s; NV] = std::array::from_fn(|v| load::<S>(b, at / S::F32_LANES + v));
            for (acc, a) in acc.iter_mut().zip(&a) {
                let a = s.splat_f32s(a[p]);
                for (acc, &b) in acc.iter_mut().zip(&b) {
                    *acc = s.mul_add_f32s(a, b, *acc);
                }
            }
        }
        let col = j + at;
        let cols = (self.b.n - col).min(NV * S::F32_LANES);
        for (i, acc) in acc.iter().enumerate() {
            let c = &mut self.c[(r + i) * self.ldc + col..][..cols];
            let mut rest = c;
            for (v, &x) in acc.iter().enumerate() {
                let lanes = rest.len().min(S::F32_LANES);
                let (out, tail) = rest.split_at_mut(lanes);
                let x = match self.out {
                    Out::Set => x,
                    Out::Add => s.add_f32s(s.partial_load_f32s(out), x),
                    Out::Bias(bias) => {
                        let bias = &bias[col + v * S::F32_LANES..][..lanes];
                        s.add_f32s(x, s.partial_load_f32s(bias))
                    }
                };
                s.partial_store_f32s(out, x);
                rest = tail;
            }
        }
    }
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        self.panels(s);
    }
}

/// Columns `col..` of a row-major matrix of stride `ld`.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub data: &'a [f32],
    pub ld: usize,
    pub col: usize,
}

impl<'a> View<'a> {
    pub fn new(data: &'a [f32], ld: usize, col: usize) -> Self {
        Self { data, ld, col }
    }

    /// The same matrix from `cols` columns further on.
    pub fn skip(self, cols: usize) -> Self {
        Self { col: self.col + cols, ..self }
    }
}

/// Packed operands of [`Outer`].
#[derive(Debug)]
pub(super) struct OuterScratch {
    x: Vec<[f32; TILE]>,
    y: Vec<[f32; PANEL]>,
}

impl OuterScratch {
    pub fn new() -> Self {
        let x = vec![[0.0; TILE]; OUTER_ROWS / TILE * TOKEN_BLOCK];
        Self { x, y: vec![[0.0; PANEL]; TOKEN_BLOCK] }
    }

    pub fn len(&self) -> usize {
        self.x.len() * TILE + self.y.len() * PANEL
    }
}

/// C += Xᵀ·Y over `tokens` rows; C is `rows × cols`, at most [`OUTER_ROWS`] rows, of stride `ldc`.
pub(super) struct Outer<'a> {
    pub x: View<'a>,
    pub y: View<'a>,
    pub tokens: usize,
    pub rows: usize,
    pub cols: usize,
    pub c: &'a mut [f32],
    pub ldc: usize,
    pub scratch: &'a mut OuterScratch,
}

impl Outer<'_> {
    pub fn run(self) {
        debug_assert!(self.rows <= OUTER_ROWS);
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn pack_x(&mut self, first: usize, len: usize) {
        for (i, tile) in self.scratch.x.chunks_mut(TOKEN_BLOCK).take(self.rows.div_ceil(TILE)).enumerate() {
            let width = TILE.min(self.rows - i * TILE);
            for (t, out) in tile.iter_mut().take(len).enumerate() {
                let src = &self.x.data[(first + t) * self.x.ld + self.x.col + i * TILE..];
                match src.first_chunk::<TILE>() {
                    Some(src) if width == TILE => *out = *src,
                    _ => {
                        *out = [0.0; TILE];
                        out[..width].copy_from_slice(&src[..width]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn pack_y(&mut self, first: usize, len: usize, j: usize) {
        let width = PANEL.min(self.cols - j);
        for (t, out) in self.scratch.y.iter_mut().take(len).enumerate() {
            let src = &self.y.data[(first + t) * self.y.ld + self.y.col + j..];
            match src.first_chunk::<PANEL>() {
                Some(src) if width == PANEL => *out = *src,
                _ => {
                    *out = [0.0; PANEL];
                    out[..width].copy_from_slice(&src[..width]);
                }
            }
        }
    }

    /// One tile: rows `i·8 + half..`, columns `j + at..`.
    #[inline(always)]
    fn tile<S: Simd, const MR: usize, const NV: usize>(
        &mut self,
        s: S,
        len: usize,
        (i, half): (usize, usize),
        (j, at): (usize, usize),
    ) {
        let mut acc = [[s.splat_f32s(0.0); NV]; MR];
        let x = &self.scratch.x[i * TOKEN_BLOCK..][..len];
        for (x, y) in x.iter().zip(&self.scratch.y) {
            let y: [S::f32s; NV] = std::array::from_fn(|v| load::<S>(y, at / S::F32_LANES + v));
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = s.splat_f32s(x[half + m]);
                for (acc, &y) in acc.iter_mut().zip(&y) {
                    *acc = s.mul_add_f32s(x, y, *acc);
                }
            }
        }
        let col = j + at;
        let cols = (self.cols - col).min(NV * S::F32_LANES);
        for (m, acc) in acc.iter().enumerate() {
            let row = i * TILE + half + m;
            if row >= self.rows {
                break;
            }
            let mut rest = &mut self.c[row * self.ldc + col..][..cols];
            for &x in acc {
                let (out, tail) = rest.split_at_mut(rest.len().min(S::F32_LANES));
                let sum = s.add_f32s(s.partial_load_f32s(out), x);
                s.partial_store_f32s(out, sum);
                rest = tail;
            }
        }
    }

    #[inline(always)]
    fn column_strip<S: Simd, const NV: usize>(&mut self, s: S, len: usize, j: usize, at: usize) {
        for i in 0..self.rows.div_ceil(TILE) {
            if S::REGISTER_COUNT >= 32 {
                self.tile::<S, 8, NV>(s, len, (i, 0), (j, at));
            } else {
                self.tile::<S, 4, NV>(s, len, (i, 0), (j, at));
                self.tile::<S, 4, NV>(s, len, (i, 4), (j, at));
            }
        }
    }
}

impl WithSimd for Outer<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        for first in (0..self.tokens).step_by(TOKEN_BLOCK) {
            let len = TOKEN_BLOCK.min(self.tokens - first);
            self.pack_x(first, len);
            for j in (0..self.cols).step_by(PANEL) {
                self.pack_y(first, len, j);
                let cols = PANEL.min(self.cols - j);
                let mut at = 0;
                while at < cols {
                    if cols - at > S::F32_LANES {
                        self.column_strip::<S, 2>(s, len, j, at);
                        at += 2 * S::F32_LANES;
                    } else {
                        self.column_strip::<S, 1>(s, len, j, at);
                        at += S::F32_LANES;
                    }
                }
            }
        }
    }
}
