use crate::elem::CppType;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

/// Sums that one launch makes at most.
pub const MAX_FOLDS: usize = 8;
/// Columns that a block sums.
const COLUMNS: usize = 32;

/// A sum over parts: out`[r, k]` += Σ, in a fixed order, of partial`[part · stride + r · row_stride + k]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Where the parts begin.
    pub partial: usize,
    /// Where the result begins.
    pub out: usize,
    /// Elements of the result.
    pub len: usize,
    /// Number of parts.
    pub parts: usize,
    /// Elements between parts.
    pub stride: usize,
    /// Columns of the result, a divisor of `len`.
    pub cols: usize,
    /// Elements between rows of a part.
    pub row_stride: usize,
}

impl Fold {
    /// `parts` parts of `len` elements, end to end.
    pub fn dense(parts: usize, len: usize) -> Self {
        Self { partial: 0, out: 0, len, parts, stride: len, cols: len, row_stride: len }
    }

    /// The same sum at another place of both buffers.
    pub fn at(self, partial: usize, out: usize) -> Self {
        Self { partial, out, ..self }
    }

    fn check(&self, partial: usize, out: usize) -> Result<()> {
        let Self { len, cols, .. } = *self;
        ensure(cols > 0 && len.is_multiple_of(cols), NAME, "cols", cols, "a divisor of len")?;
        ensure(self.parts < 1 << 31 && cols < 1 << 31, NAME, "parts", self.parts, "below 2^31")?;
        need(NAME, "out", out, self.out + len)?;
        let rows = len / cols;
        let part = if rows == 0 { 0 } else { (rows - 1) * self.row_stride + cols };
        need(NAME, "partial", partial, self.partial + self.parts.saturating_sub(1) * self.stride + part)
    }
}

/// Mirrors `FoldJob` in `kernels/fold/parts.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct FoldJob {
    partial: i64,
    out: i64,
    len: i64,
    stride: i64,
    row_stride: i64,
    parts: i32,
    cols: i32,
    first_block: i32,
    reserved: i32,
}

/// Sums as the kernel takes them; mirrors `FoldJobs` in `kernels/fold/parts.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct FoldJobs {
    job: [FoldJob; MAX_FOLDS],
    count: i32,
    reserved: i32,
}
const _: () = assert!(size_of::<FoldJobs>() == 456);

impl CppType for FoldJobs {
    const CPP: &'static str = "FoldJobs";
}

crate::kernel! {
    /// Sums over parts, up to [`MAX_FOLDS`] side by side. The results do not overlap.
    pub struct FoldParts['a] = "fold_parts", |_this| ""; {
        /// All parts.
        partial: View<'a, f32>,
        /// All results.
        out: ViewMut<'a, f32>,
        /// The sums.
        jobs: Val<FoldJobs>,
    }
    host: {
        /// Blocks of the launch.
        blocks: usize,
    }
}

const NAME: &str = FoldParts::NAME;

impl<'a> FoldParts<'a> {
    /// The sums `folds`.
    ///
    /// # Errors
    /// [`KernelError::Length`](crate::KernelError::Length), [`KernelError::Size`](crate::KernelError::Size).
    pub fn new(partial: View<'a, f32>, out: ViewMut<'a, f32>, folds: &[Fold]) -> Result<Self> {
        ensure(folds.len() <= MAX_FOLDS, NAME, "folds", folds.len(), "at most 8")?;
        let mut jobs = FoldJobs { count: folds.len() as i32, ..FoldJobs::zeroed() };
        let mut blocks = 0;
        for (job, fold) in jobs.job.iter_mut().zip(folds) {
            fold.check(partial.len(), out.len())?;
            *job = FoldJob {
                partial: fold.partial as i64,
                out: fold.out as i64,
                len: fold.len as i64,
                stride: fold.stride as i64,
                row_stride: fold.row_stride as i64,
                parts: fold.parts as i32,
                cols: fold.cols as i32,
                first_block: blocks as i32,
                reserved: 0,
            };
            blocks += fold.len.div_ceil(COLUMNS);
        }
        Ok(Self { partial, out, jobs: Val(jobs), blocks, marker: PhantomData })
    }
}

impl Launch for FoldParts<'_> {
    fn check(&self) -> Result<()> {
        ensure(self.blocks < 1 << 31, Self::NAME, "blocks", self.blocks, "below 2^31")
    }

    fn dims(&self) -> Dims {
        Dims { grid: [self.blocks as u32, 1, 1], block: 256, shared: 0 }
    }
}
