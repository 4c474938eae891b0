use super::choose::Plan;
use super::{Layout, Shape};
use crate::elem::{CppType, Elem};
use crate::error::Result;
use crate::kernel::{Kernel, Launch, Val, ensure};
use bytemuck::{Pod, Zeroable};
use mamba_cuda::{Dims, TensorMap, View, ViewMut};

/// Sizes of a product as the kernels take them; mirrors `GemmArgs` in `gemm_common.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GemmArgs {
    pub(super) m: i64,
    pub(super) n: i64,
    pub(super) k: i64,
    pub(super) lda: i64,
    pub(super) ldb: i64,
    pub(super) ldc: i64,
    pub(super) k_chunk: i64,
    pub(super) splits: i32,
    pub(super) accumulate: i32,
    pub(super) has_bias: i32,
    pub(super) reserved: i32,
}
const _: () = assert!(size_of::<GemmArgs>() == 72);

impl GemmArgs {
    pub(super) fn new(s: &Shape, k_chunk: usize, splits: usize, accumulate: bool, has_bias: bool) -> Self {
        Self {
            m: s.m as i64,
            n: s.n as i64,
            k: s.k as i64,
            lda: s.lda as i64,
            ldb: s.ldb as i64,
            ldc: s.ldc as i64,
            k_chunk: k_chunk as i64,
            splits: splits as i32,
            accumulate: i32::from(accumulate),
            has_bias: i32::from(has_bias),
            reserved: 0,
        }
    }
}

impl CppType for GemmArgs {
    const CPP: &'static str = "GemmArgs";
}

fn tiled(layout: Layout, aligned: bool) -> String {
    let (a, b) = layout.majors();
    format!("{a}, {b}, {aligned}")
}

fn check_grid(kernel: &'static str, plan: &Plan) -> Result<()> {
    let blocks = plan.tiles * plan.splits;
    ensure(blocks < 1 << 31, kernel, "tiles", blocks, "below 2^31")
}

crate::kernel! {
    /// Exact f32 on the CUDA cores: `kernels/gemm/simt.cu`.
    pub struct GemmSimt['a] = "gemm_simt", |this| format!("<{}>", tiled(this.layout, this.aligned)); {
        /// First operand.
        a: View<'a, f32>,
        /// Second operand.
        b: View<'a, f32>,
        /// `[n]`.
        bias: Option<View<'a, f32>>,
        /// Result.
        c: ViewMut<'a, f32>,
        /// One zero a tile.
        turns: ViewMut<'a, i32>,
        /// Sizes.
        args: Val<GemmArgs>,
    }
    host: {
        /// Storage.
        layout: Layout,
        /// Rows of both operands start at multiples of 16 bytes.
        aligned: bool,
        /// The cut.
        plan: Plan,
    }
}

impl Launch for GemmSimt<'_> {
    fn check(&self) -> Result<()> {
        check_grid(Self::NAME, &self.plan)
    }

    fn dims(&self) -> Dims {
        Dims { grid: [(self.plan.tiles * self.plan.splits) as u32, 1, 1], block: 256, shared: 0 }
    }
}

crate::kernel! {
    /// Tensor cores with `mma.sync`: `kernels/gemm/mma.cu`.
    pub struct GemmMma['a, T: Elem, O: Elem] = "gemm_mma",
     |this| format!("<{}, {}, {}>", T::CPP, O::CPP, tiled(this.layout, this.aligned)); {
        /// First operand.
        a: View<'a, T>,
        /// Second operand.
        b: View<'a, T>,
        /// `[n]`.
        bias: Option<View<'a, f32>>,
        /// Result.
        c: ViewMut<'a, O>,
        /// One zero a tile.
        turns: ViewMut<'a, i32>,
        /// Sizes.
        args: Val<GemmArgs>,
    }
    host: {
        /// Storage.
        layout: Layout,
        /// Rows of both operands start at multiples of 16 bytes.
        aligned: bool,
        /// The cut.
        plan: Plan,
    }
}

impl<T: Elem, O: Elem> Launch for GemmMma<'_, T, O> {
    fn check(&self) -> Result<()> {
        check_grid(Self::NAME, &self.plan)
    }

    /// Shared memory: three stages of both operands' padded tiles, as `Tile` in `mma.cu` lays them out.
    fn dims(&self) -> Dims {
        let size = size_of::<T>();
        let k_major = 128 * (32 + 16 / size);
        let mn_major = 32 * (128 + 8);
        let (a, b) = self.layout.majors();
        let operand = |major| if major == 0 { k_major } else { mn_major };
        let shared = 3 * (operand(a) + operand(b)) * size;
        Dims { grid: [(self.plan.tiles * self.plan.splits) as u32, 1, 1], block: 256, shared: shared as u32 }
    }
}

/// Rows of a tile of the warpgroup kernel.
pub(super) const WGMMA_ROWS: usize = 128;

crate::kernel! {
    /// Hopper's warpgroup products: `kernels/gemm/wgmma.cu`.
    pub struct GemmWgmma['a, T: Elem, O: Elem] = "gemm_wgmma",
     |this| {
        let (a, b) = this.layout.majors();
        format!("<{}, {}, {}, {a}, {b}>", this.width, T::CPP, O::CPP)
     }; {
        /// Descriptor of the first operand.
        map_a: TensorMap,
        /// Descriptor of the second operand.
        map_b: TensorMap,
        /// Descriptor of the result.
        map_c: TensorMap,
        /// `[n]`.
        bias: Option<View<'a, f32>>,
        /// Two zeros a tile.
        turns: ViewMut<'a, i32>,
        /// Sizes.
        args: Val<GemmArgs>,
    }
    host: {
        /// Storage.
        layout: Layout,
        /// Columns of a tile.
        width: usize,
        /// Persistent blocks at most; no result depends on it.
        blocks: usize,
        /// The cut.
        plan: Plan,
        /// What the first two descriptors point to.
        operands: (View<'a, T>, View<'a, T>),
        /// What the third descriptor points to.
        result: ViewMut<'a, O>,
    }
}

impl<T: Elem, O: Elem> Launch for GemmWgmma<'_, T, O> {
    fn check(&self) -> Result<()> {
        check_grid(Self::NAME, &self.plan)?;
        ensure(
            matches!(self.width, 96 | 128 | 192 | 256),
            Self::NAME,
            "width",
            self.width,
            "96, 128, 192 or 256",
        )
    }

    /// Shared memory: the ring of stages and both consumers' staging boxes, as `Ring` in `wgmma.cu` lays them out.
    fn dims(&self) -> Dims {
        let boxes = self.width.div_ceil(64);
        let stage = WGMMA_ROWS * 64 * 2 + boxes * 64 * 64 * 2;
        let stages = match self.width {
            193.. => 3,
            129.. => 4,
            _ => 6,
        };
        let shared = stages * stage + 2 * boxes * 64 * 128 + 1024;
        let blocks = (self.plan.tiles * self.plan.splits).min(self.blocks);
        Dims { grid: [blocks as u32, 1, 1], block: 384, shared: shared as u32 }
    }
}

/// Tiles of `rows` × `cols` that cover C.
pub(super) fn tiles(shape: &Shape, rows: usize, cols: usize) -> usize {
    shape.m.div_ceil(rows) * shape.n.div_ceil(cols)
}
