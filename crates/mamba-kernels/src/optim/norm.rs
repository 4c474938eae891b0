use super::state::{TailInputs, TailState};
use crate::elem::CppType;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};

/// Elements whose squares make one partial sum.
const BLOCK: usize = 1 << 14;
/// Most elements of a piece of a control span.
const PIECE: usize = 1 << 12;
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;

/// Partial sums of an arena of `len` elements.
pub fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

crate::kernel! {
    /// Sums of squares of the unscaled gradient and whether it holds an Inf or NaN, block by block.
    pub struct GradSums['a] = "grad_sums", |_this| ""; {
        /// `[len]`, times the loss scale.
        grads: View<'a, f32>,
        /// One value.
        inputs: View<'a, TailInputs>,
        /// One value.
        state: View<'a, TailState>,
        /// `[blocks(len)]`.
        partial: ViewMut<'a, f64>,
        /// `[blocks(len)]`: 1 where the block holds an Inf or NaN.
        bad: ViewMut<'a, u32>,
        /// Elements of the arena.
        len: Val<i64>,
    }
}

impl Launch for GradSums<'_> {
    fn check(&self) -> Result<()> {
        ensure(self.len.0 >= 0, Self::NAME, "len", self.len.0 as usize, "at least 0")?;
        let len = self.len.0 as usize;
        need(Self::NAME, "grads", self.grads.len(), len)?;
        need(Self::NAME, "inputs", self.inputs.len(), 1)?;
        need(Self::NAME, "state", self.state.len(), 1)?;
        need(Self::NAME, "partial", self.partial.len(), blocks(len))?;
        need(Self::NAME, "bad", self.bad.len(), blocks(len))
    }

    fn dims(&self) -> Dims {
        let grid = blocks(self.len.0 as usize).div_ceil(WARPS).min(1 << 20);
        Dims { grid: [grid as u32, 1, 1], block: THREADS as u32, shared: 0 }
    }
}

/// A piece of the control spans: `rows` runs of `width` elements, `stride` apart.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct SpanPiece {
    start: i64,
    stride: i64,
    width: i32,
    rows: i32,
}

impl CppType for SpanPiece {
    const CPP: &'static str = "SpanPiece";
}

/// Cuts control spans, each `(start, width, stride, rows)`, into pieces for the device; the order of the sum is that of
/// the pieces.
pub fn pieces(spans: impl IntoIterator<Item = (usize, usize, usize, usize)>) -> Vec<SpanPiece> {
    let mut out = Vec::new();
    for (start, width, stride, rows) in spans {
        let (wide, tall) = (width.clamp(1, PIECE), (PIECE / width.max(1)).max(1));
        for row in (0..rows).step_by(tall) {
            for column in (0..width).step_by(wide) {
                out.push(SpanPiece {
                    start: (start + row * stride + column) as i64,
                    stride: stride as i64,
                    width: wide.min(width - column) as i32,
                    rows: tall.min(rows - row) as i32,
                });
            }
        }
    }
    out
}

crate::kernel! {
    /// Sums of squares over the pieces of the control spans; nothing where the control clip is off.
    pub struct SpanSums['a] = "span_sums", |_this| ""; {
        /// The arena.
        grads: View<'a, f32>,
        /// From [`pieces`], all inside the arena.
        pieces: View<'a, SpanPiece>,
        /// One value.
        inputs: View<'a, TailInputs>,
        /// One value.
        state: View<'a, TailState>,
        /// `[count]`.
        partial: ViewMut<'a, f64>,
        /// Number of pieces.
        count: Val<i32>,
    }
}

impl Launch for SpanSums<'_> {
    fn check(&self) -> Result<()> {
        let count = self.count.0 as usize;
        need(Self::NAME, "pieces", self.pieces.len(), count)?;
        need(Self::NAME, "inputs", self.inputs.len(), 1)?;
        need(Self::NAME, "state", self.state.len(), 1)?;
        need(Self::NAME, "partial", self.partial.len(), count)
    }

    fn dims(&self) -> Dims {
        let grid = (self.count.0 as usize).div_ceil(WARPS);
        Dims { grid: [grid as u32, 1, 1], block: THREADS as u32, shared: 0 }
    }
}

crate::kernel! {
    /// The control clip: scales the spans in place where their norm is above the threshold.
    pub struct SpanClip['a] = "span_clip", |_this| ""; {
        /// The arena.
        grads: ViewMut<'a, f32>,
        /// From [`pieces`], all inside the arena.
        pieces: View<'a, SpanPiece>,
        /// One value.
        inputs: View<'a, TailInputs>,
        /// `[count]`.
        partial: View<'a, f64>,
        /// One value: the norm before the clip, NaN where it is off.
        norm: ViewMut<'a, f64>,
        /// Number of pieces.
        count: Val<i32>,
    }
}

impl Launch for SpanClip<'_> {
    fn check(&self) -> Result<()> {
        let count = self.count.0 as usize;
        need(Self::NAME, "pieces", self.pieces.len(), count)?;
        need(Self::NAME, "inputs", self.inputs.len(), 1)?;
        need(Self::NAME, "partial", self.partial.len(), count)?;
        need(Self::NAME, "norm", self.norm.len(), 1)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [(self.count.0 as u32).clamp(1, 1024), 1, 1], block: THREADS as u32, shared: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_element_once() {
        let spans =
            [(7, 3, 11, 2000), (30_000, 10_000, 10_000, 1), (50_000, 1, 1, 1), (60_000, 5000, 6000, 3)];
        let mut seen = vec![0u8; 80_000];
        for p in pieces(spans) {
            assert!((p.width * p.rows) as usize <= PIECE);
            for r in 0..p.rows as usize {
                for c in 0..p.width as usize {
                    seen[p.start as usize + r * p.stride as usize + c] += 1;
                }
            }
        }
        let mut want = vec![0u8; 80_000];
        for (start, width, stride, rows) in spans {
            (0..rows).for_each(|r| (0..width).for_each(|c| want[start + r * stride + c] = 1));
        }
        assert_eq!(seen, want);
    }

    #[test]
    fn blocks_round_up() {
        assert_eq!((blocks(0), blocks(1), blocks(BLOCK), blocks(BLOCK + 1)), (0, 1, 1, 2));
    }
}
