//! Matrix products: `kernels/gemm`.
//!
//! [`Gemm`] is the one entry: it picks the engine and the shape of the launch from the problem alone, so the same
//! problem gives the same bits. Only weight gradients ([`Layout::Tn`]) are cut along k; a row of a forward product is
//! summed in one piece, whatever the batch.

mod choose;
mod engines;
mod thin;

pub use choose::{Engine, Plan, Precision, choose};
pub use engines::{GemmArgs, GemmMma, GemmSimt, GemmWgmma};
pub use thin::{GemmThin, GemmThinNn, GemmThinNt};

use crate::elem::Elem;
use crate::error::{KernelError, Result};
use crate::kernel::{Launch, Val, ensure, need};
use crate::registry::Kernels;
use mamba_cuda::{MatrixMap, TensorMap, View, ViewMut};
use std::marker::PhantomData;

/// How the operands are stored. C is always `[m, n]` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A `[m, k]`, B `[k, n]`: forward, C = A·B.
    Nn,
    /// A `[m, k]`, B `[n, k]`: input gradient, C = A·Bᵀ.
    Nt,
    /// A `[k, m]`, B `[k, n]`: weight gradient, C = Aᵀ·B.
    Tn,
}

impl Layout {
    /// (A, B) as the kernels' template arguments: 0 is K-major, 1 is MN-major.
    pub(crate) fn majors(self) -> (u32, u32) {
        match self {
            Self::Nn => (0, 1),
            Self::Nt => (0, 0),
            Self::Tn => (1, 1),
        }
    }
}

/// Sizes of a product: C `[m, n]` = op(A)`[m, k]` · op(B)`[k, n]`, and elements between stored rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Storage of the operands.
    pub layout: Layout,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Elements between stored rows of A.
    pub lda: usize,
    /// Elements between stored rows of B.
    pub ldb: usize,
    /// Elements between rows of C.
    pub ldc: usize,
}

impl Shape {
    /// A product of densely stored matrices.
    pub fn dense(layout: Layout, m: usize, n: usize, k: usize) -> Self {
        let lda = if layout == Layout::Tn { m } else { k };
        let ldb = if layout == Layout::Nt { k } else { n };
        Self { layout, m, n, k, lda, ldb, ldc: n }
    }

    /// (rows, columns) of A and B as they are stored.
    fn stored(&self) -> [(usize, usize); 2] {
        let a = if self.layout == Layout::Tn { (self.k, self.m) } else { (self.m, self.k) };
        let b = if self.layout == Layout::Nt { (self.n, self.k) } else { (self.k, self.n) };
        [a, b]
    }
}

/// Elements from the first to the last of a stored matrix.
fn extent(rows: usize, cols: usize, ld: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * ld + cols }
}

fn extent_of_c(s: &Shape) -> usize {
    extent(s.m, s.n, s.ldc)
}

/// Checks the sizes, and the lengths of both operands and the bias.
fn check_operands(
    kernel: &'static str,
    s: &Shape,
    (a, b): (usize, usize),
    bias: Option<usize>,
) -> Result<()> {
    for (name, size) in [("m", s.m), ("n", s.n), ("k", s.k)] {
        ensure(size > 0 && size < 1 << 31, kernel, name, size, "1 to 2^31 - 1")?;
    }
    let [(a_rows, a_cols), (b_rows, b_cols)] = s.stored();
    ensure(s.lda >= a_cols, kernel, "lda", s.lda, "at least the row length of A")?;
    ensure(s.ldb >= b_cols, kernel, "ldb", s.ldb, "at least the row length of B")?;
    ensure(s.ldc >= s.n, kernel, "ldc", s.ldc, "at least n")?;
    need(kernel, "a", a, extent(a_rows, a_cols, s.lda))?;
    need(kernel, "b", b, extent(b_rows, b_cols, s.ldb))?;
    need(kernel, "bias", bias.unwrap_or(s.n), s.n)
}

/// One product: C = op(A)·op(B) (+ bias) (+ C).
#[derive(Debug)]
pub struct Gemm<'a, T: Elem, O: Elem> {
    /// Sizes.
    pub shape: Shape,
    /// First operand.
    pub a: View<'a, T>,
    /// Second operand.
    pub b: View<'a, T>,
    /// Added to every row; `[n]`.
    pub bias: Option<View<'a, f32>>,
    /// Result.
    pub c: ViewMut<'a, O>,
    /// Adds to C instead of overwriting it; only for an f32 C.
    pub accumulate: bool,
    /// Arithmetic of f32 operands.
    pub precision: Precision,
    /// Turn counters for cut sums: zeros, and zeros again after every launch.
    pub turns: ViewMut<'a, i32>,
}

impl<'a, T: Elem, O: Elem> Gemm<'a, T, O> {
    const NAME: &'static str = "gemm";

    fn check(&self) -> Result<()> {
        let operands = (self.a.len(), self.b.len());
        check_operands(Self::NAME, &self.shape, operands, self.bias.map(|b| b.len()))?;
        need(Self::NAME, "c", self.c.len(), extent_of_c(&self.shape))?;
        let fits = !self.accumulate || size_of::<O>() == 4;
        ensure(fits, Self::NAME, "accumulate", 1, "off where C is stored in half precision")
    }

    /// Whether the bulk copy engine can address all three matrices.
    fn mappable(&self) -> bool {
        let s = &self.shape;
        let row = |ld: usize, size: usize| (ld * size).is_multiple_of(16);
        let addresses = [self.a.ptr(), self.b.ptr(), self.c.ptr()].iter().all(|p| p.is_multiple_of(16));
        addresses && row(s.lda, size_of::<T>()) && row(s.ldb, size_of::<T>()) && row(s.ldc, size_of::<O>())
    }

    /// The engine and cut that `launch` takes on a device of this compute capability.
    pub fn plan(&self, capability: (i32, i32)) -> Plan {
        let hopper = capability == (9, 0) && size_of::<T>() == 2 && self.mappable();
        choose(&self.shape, size_of::<T>(), size_of::<O>() == 4, self.precision, hopper)
    }

    /// Starts the product.
    ///
    /// # Errors
    /// [`KernelError::Length`], [`KernelError::Size`], those of the driver.
    pub fn launch(self, kernels: &Kernels) -> Result<()> {
        self.check()?;
        let plan = self.plan(kernels.gpu().info().capability);
        let turns = if plan.splits > 1 { plan.tiles * 2 } else { 0 };
        need(Self::NAME, "turns", self.turns.len(), turns)?;
        let args =
            Val(GemmArgs::new(&self.shape, plan.k_chunk, plan.splits, self.accumulate, self.bias.is_some()));
        let (a, b, bias, c, turns) = (self.a, self.b, self.bias, self.c, self.turns);
        let layout = self.shape.layout;
        let aligned = [(a.ptr(), self.shape.lda), (b.ptr(), self.shape.ldb)]
            .iter()
            .all(|&(ptr, ld)| ptr.is_multiple_of(16) && (ld * size_of::<T>()).is_multiple_of(16));
        match plan.engine {
            Engine::Simt => {
                let (Some(a), Some(b), Some(c)) = (retype(a), retype(b), retype_mut(c)) else {
                    return Err(not_f32());
                };
                GemmSimt { a, b, bias, c, turns, args, layout, aligned, plan, marker: PhantomData }
                    .launch(kernels)
            }
            Engine::Mma => GemmMma { a, b, bias, c, turns, args, layout, aligned, plan, marker: PhantomData }
                .launch(kernels),
            Engine::Wgmma { width } => {
                kernels.gpu().bind()?;
                let [map_a, map_b, map_c] = maps(&self.shape, width, (a, b), &c)?;
                let blocks = kernels.gpu().info().multiprocessors;
                let call = GemmWgmma {
                    map_a,
                    map_b,
                    map_c,
                    bias,
                    turns,
                    args,
                    layout,
                    width,
                    blocks,
                    plan,
                    operands: (a, b),
                    result: c,
                    marker: PhantomData,
                };
                call.launch(kernels)
            }
        }
    }
}

fn not_f32() -> KernelError {
    KernelError::Size {
        kernel: "gemm",
        argument: "precision",
        got: 0,
        expected: "tensor cores for half operands",
    }
}

/// The view as one of f32, where that is what it is.
fn retype<T: Elem>(view: View<'_, T>) -> Option<View<'_, f32>> {
    view.cast()
}

fn retype_mut<T: Elem>(view: ViewMut<'_, T>) -> Option<ViewMut<'_, f32>> {
    view.cast()
}

/// Descriptors of both operands and the result, with the boxes that `wgmma.cu` expects.
fn maps<T: Elem, O: Elem>(
    s: &Shape,
    width: usize,
    (a, b): (View<'_, T>, View<'_, T>),
    c: &ViewMut<'_, O>,
) -> Result<[TensorMap; 3]> {
    let [(a_rows, a_cols), (b_rows, b_cols)] = s.stored();
    let (major_a, major_b) = s.layout.majors();
    let map = |element, address, (rows, cols): (usize, usize), ld: usize, box_rows: u32, box_cols: u32| {
        let (rows, cols, ld) = (rows as u64, cols as u64, ld as u64);
        TensorMap::new(&MatrixMap { element, address, rows, cols, ld, box_rows, box_cols })
    };
    let rows_a = if major_a == 0 { engines::WGMMA_ROWS as u32 } else { 64 };
    let rows_b = if major_b == 0 { width as u32 } else { 64 };
    Ok([
        map(T::MAP, a.ptr(), (a_rows, a_cols), s.lda, rows_a, 64)?,
        map(T::MAP, b.ptr(), (b_rows, b_cols), s.ldb, rows_b, 64)?,
        map(O::MAP, c.ptr(), (s.m, s.n), s.ldc, 64, 128 / size_of::<O>() as u32)?,
    ])
}
