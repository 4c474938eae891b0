use super::engines::GemmArgs;
use super::{Layout, Shape, check_operands, extent_of_c};
use crate::elem::Elem;
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure, need};
use crate::registry::Kernels;
use mamba_cuda::{Dims, View, ViewMut};
use std::marker::PhantomData;

/// Rows of A that one block takes, where there is more than one.
const ROWS: usize = 8;

crate::kernel! {
    /// C = A·B with few rows: `kernels/gemm/thin.cu`.
    pub struct GemmThinNn['a, T: Elem] = "gemm_thin_nn",
     |this| format!("<{}, {}, {}>", T::CPP, rows(&this.shape), this.vector); {
        /// First operand.
        a: View<'a, T>,
        /// Second operand.
        b: View<'a, T>,
        /// `[n]`.
        bias: Option<View<'a, f32>>,
        /// Result.
        c: ViewMut<'a, T>,
        /// Sizes.
        args: Val<GemmArgs>,
    }
    host: {
        /// Sizes.
        shape: Shape,
        /// Rows of B start at multiples of 16 bytes and are whole vectors.
        vector: bool,
    }
}

crate::kernel! {
    /// C = A·Bᵀ with few rows: `kernels/gemm/thin.cu`.
    pub struct GemmThinNt['a, T: Elem] = "gemm_thin_nt",
     |this| format!("<{}, {}, {}>", T::CPP, rows(&this.shape), this.vector); {
        /// First operand.
        a: View<'a, T>,
        /// Second operand.
        b: View<'a, T>,
        /// `[n]`.
        bias: Option<View<'a, f32>>,
        /// Result.
        c: ViewMut<'a, f32>,
        /// Sizes.
        args: Val<GemmArgs>,
    }
    host: {
        /// Sizes.
        shape: Shape,
        /// Rows of B start at multiples of 16 bytes and are whole vectors.
        vector: bool,
    }
}

fn rows(shape: &Shape) -> usize {
    if shape.m == 1 { 1 } else { ROWS }
}

/// Blocks along the columns, blocks along the rows.
fn grid(shape: &Shape, columns: usize) -> [u32; 3] {
    [shape.n.div_ceil(columns) as u32, shape.m.div_ceil(rows(shape)) as u32, 1]
}

fn check_rows(kernel: &'static str, shape: &Shape) -> Result<()> {
    ensure(shape.m.div_ceil(ROWS) <= 65_535, kernel, "m", shape.m, "at most 524,280")
}

impl<T: Elem> Launch for GemmThinNn<'_, T> {
    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.shape)
    }

    fn dims(&self) -> Dims {
        Dims { grid: grid(&self.shape, 32 / size_of::<T>()), block: 256, shared: 0 }
    }
}

impl<T: Elem> Launch for GemmThinNt<'_, T> {
    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.shape)
    }

    fn dims(&self) -> Dims {
        Dims { grid: grid(&self.shape, 32), block: 256, shared: 0 }
    }
}

/// A product with few rows, as decoding needs it: C = op(A)·op(B) (+ bias), exact f32 products and sums for every
/// storage type. A row has the same bits among any number of rows; they are not those of [`Gemm`](super::Gemm).
///
/// C is of T for [`Layout::Nn`] and f32 for [`Layout::Nt`].
#[derive(Debug)]
pub struct GemmThin<'a, T: Elem, O: Elem> {
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
}

impl<T: Elem, O: Elem> GemmThin<'_, T, O> {
    const NAME: &'static str = "gemm_thin";

    /// Starts the product.
    ///
    /// # Errors
    /// [`KernelError::Length`](crate::KernelError::Length), [`KernelError::Size`](crate::KernelError::Size) also for a
    /// layout or a type of C that it does not have, those of the driver.
    pub fn launch(self, kernels: &Kernels) -> Result<()> {
        let Self { shape, a, b, bias, c } = self;
        check_operands(Self::NAME, &shape, (a.len(), b.len()), bias.map(|b| b.len()))?;
        need(Self::NAME, "c", c.len(), extent_of_c(&shape))?;
        let args = Val(GemmArgs::new(&shape, shape.k, 1, false, bias.is_some()));
        let inner = if shape.layout == Layout::Nt { shape.k } else { shape.n };
        let whole = |n: usize| (n * size_of::<T>()).is_multiple_of(16);
        let vector = b.ptr().is_multiple_of(16) && whole(shape.ldb) && whole(inner);
        let wrong_type = || crate::KernelError::Size {
            kernel: Self::NAME,
            argument: "c",
            got: size_of::<O>() as u64,
            expected: "elements of the operands' type (nn) or f32 (nt)",
        };
        match shape.layout {
            Layout::Nn => {
                let c = c.cast().ok_or_else(wrong_type)?;
                GemmThinNn { a, b, bias, c, args, shape, vector, marker: PhantomData }.launch(kernels)
            }
            Layout::Nt => {
                let c = c.cast().ok_or_else(wrong_type)?;
                GemmThinNt { a, b, bias, c, args, shape, vector, marker: PhantomData }.launch(kernels)
            }
            Layout::Tn => ensure(false, Self::NAME, "layout", 2, "nn or nt"),
        }
    }
}
