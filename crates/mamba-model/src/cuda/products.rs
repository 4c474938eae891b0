use mamba_cuda::{BlasLt, BlasMath, DeviceBuf, Operand, Product, View, ViewMut};
use mamba_kernels::elementwise::AddBias;
use mamba_kernels::gemm::{Gemm, GemmThin, Layout, Precision, Shape};
use mamba_kernels::{Elem, Kernels, Launch, Result, Val};
use std::marker::PhantomData;

/// Which products a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// This workspace's kernels; f32 operands at this precision.
    Own(Precision),
    /// cuBLASLt.
    Blas(BlasMath),
}

/// One product: C = op(A)·op(B) (+ bias) (+ C).
pub(super) struct Call<'a, T: Elem, O: Elem> {
    pub shape: Shape,
    pub a: View<'a, T>,
    pub b: View<'a, T>,
    pub bias: Option<View<'a, f32>>,
    pub c: ViewMut<'a, O>,
    pub accumulate: bool,
}

/// Runs products in one arithmetic.
pub(super) struct Products {
    kernels: Kernels,
    route: Route,
    /// Products of one token a sequence: by kernels for few rows, whatever the batch.
    thin: bool,
    turns: DeviceBuf<i32>,
}

enum Route {
    Own(Precision),
    Blas(BlasLt, BlasMath),
}

impl Products {
    /// `largest`: (rows, columns) of every weight whose gradient is taken.
    pub fn new(
        kernels: &Kernels,
        arithmetic: Arithmetic,
        weights: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Self> {
        let gpu = kernels.gpu();
        let route = match arithmetic {
            Arithmetic::Own(precision) => Route::Own(precision),
            Arithmetic::Blas(math) => Route::Blas(BlasLt::open(gpu)?, math),
        };
        // Two counters for each of the smallest tiles.
        let tiles = weights.map(|(rows, cols)| rows.div_ceil(128) * cols.div_ceil(96)).max().unwrap_or(0);
        Ok(Self { kernels: kernels.clone(), route, thin: false, turns: DeviceBuf::zeros(gpu, 2 * tiles)? })
    }

    /// Whether the products that follow have one row a sequence.
    pub fn set_thin(&mut self, thin: bool) {
        self.thin = thin;
    }

    pub fn run<T: Elem, O: Elem>(&mut self, call: Call<'_, T, O>) -> Result<()> {
        let Call { shape, a, b, bias, mut c, accumulate } = call;
        match &self.route {
            Route::Own(_) if self.thin => GemmThin { shape, a, b, bias, c }.launch(&self.kernels),
            &Route::Own(precision) => {
                let turns = self.turns.view_mut();
                Gemm { shape, a, b, bias, c, accumulate, precision, turns }.launch(&self.kernels)
            }
            Route::Blas(blas, math) => {
                blas.multiply(&product(&shape, *math, accumulate), a, b, &mut c)?;
                let Some(bias) = bias else { return Ok(()) };
                let (rows, cols, ld) = (Val(shape.m as i64), Val(shape.n as i32), Val(shape.ldc as i64));
                AddBias { x: c, bias, rows, cols, ld, marker: PhantomData }.launch(&self.kernels)
            }
        }
    }
}

fn product(shape: &Shape, math: BlasMath, accumulate: bool) -> Product {
    let Shape { layout, m, n, k, lda, ldb, ldc } = *shape;
    Product {
        m,
        n,
        k,
        a: Operand { transposed: layout == Layout::Tn, ld: lda },
        b: Operand { transposed: layout == Layout::Nt, ld: ldb },
        ldc,
        accumulate,
        math,
    }
}

impl std::fmt::Debug for Products {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let route = match &self.route {
            Route::Own(precision) => format!("own, {precision:?}"),
            Route::Blas(_, math) => format!("cuBLASLt, {math:?}"),
        };
        f.debug_struct("Products").field("route", &route).finish_non_exhaustive()
    }
}
