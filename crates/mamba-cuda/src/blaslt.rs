//! Matrix products by cuBLASLt, loaded when first asked for. The library is a yardstick and an option, never a need.

use crate::buf::{DeviceBuf, View, ViewMut};
use crate::error::{CudaError, Result};
use crate::gpu::Gpu;
use bytemuck::Pod;
use cudarc::cublaslt::{result, sys};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Bytes of scratch for the library: what NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Largest alignment that makes a difference to the library.
const MAX_ALIGN: u64 = 256;

/// An element type of products.
pub trait BlasElement: Pod {
    /// The library's name for it.
    #[doc(hidden)]
    const TYPE: BlasType;
}

/// The library's names of element types.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlasType(sys::cudaDataType);

impl BlasElement for f32 {
    const TYPE: BlasType = BlasType(sys::cudaDataType::CUDA_R_32F);
}
impl BlasElement for half::bf16 {
    const TYPE: BlasType = BlasType(sys::cudaDataType::CUDA_R_16BF);
}
impl BlasElement for half::f16 {
    const TYPE: BlasType = BlasType(sys::cudaDataType::CUDA_R_16F);
}

/// Arithmetic; sums are in f32 in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlasMath {
    /// What the library finds fastest at the operands' precision.
    Fast,
    /// f32 operands rounded to TF32.
    Tf32,
    /// No rounding and no reordering that the library can avoid.
    Pedantic,
}

impl BlasMath {
    fn compute(self) -> sys::cublasComputeType_t {
        match self {
            Self::Fast => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Self::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            Self::Pedantic => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_PEDANTIC,
        }
    }
}

/// How a row-major operand is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Whether it is stored transposed: A `[k, m]`, B `[n, k]`.
    pub transposed: bool,
    /// Elements between stored rows.
    pub ld: usize,
}

/// C `[m, n]` = op(A) `[m, k]` · op(B) `[k, n]` (+ C), all row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Storage of A.
    pub a: Operand,
    /// Storage of B.
    pub b: Operand,
    /// Elements between rows of C.
    pub ldc: usize,
    /// Whether C is added to.
    pub accumulate: bool,
    /// Arithmetic.
    pub math: BlasMath,
}

impl Product {
    fn check(&self, operand: &'static str, got: usize, rows: usize, cols: usize, ld: usize) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let need = match rows {
            0 => 0,
            _ => (rows - 1).saturating_mul(ld).saturating_add(cols),
        };
        match got >= need && ld >= cols {
            true => Ok(()),
            false => Err(CudaError::BlasOperand { m, n, k, operand, ld, got, need }),
        }
    }

    fn check_all(&self, a: usize, b: usize, c: usize) -> Result<()> {
        let swap = |transposed: bool, rows, cols| if transposed { (cols, rows) } else { (rows, cols) };
        let (a_rows, a_cols) = swap(self.a.transposed, self.m, self.k);
        let (b_rows, b_cols) = swap(self.b.transposed, self.k, self.n);
        self.check("a", a, a_rows, a_cols, self.a.ld)?;
        self.check("b", b, b_rows, b_cols, self.b.ld)?;
        self.check("c", c, self.m, self.n, self.ldc)
    }
}

/// What a plan depends on beside the product: types and alignments of A and B, and of C.
type Key = (Product, [BlasType; 2], [u32; 3]);

/// cuBLASLt on the compute stream of one GPU.
pub struct BlasLt {
    gpu: Gpu,
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuf<u8>,
    plans: Mutex<HashMap<Key, Plan>>,
}

// SAFETY: the library's handle may be used from any thread; the plans are behind a lock.
unsafe impl Send for BlasLt {}

/// Descriptors and the algorithm of one kind of product.
struct Plan {
    desc: Desc,
    layouts: [Layout; 3],
    algo: sys::cublasLtMatmulAlgo_t,
}

struct Desc(sys::cublasLtMatmulDesc_t);
struct Layout(sys::cublasLtMatrixLayout_t);
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created by the library and held by nobody else. Host memory only: nothing useful can fail.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}
impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}
impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

fn named<T>(call: &'static str, result: std::result::Result<T, result::CublasError>) -> Result<T> {
    result.map_err(|error| CudaError::BlasLt { call, status: format!("{:?}", error.0) })
}

impl BlasLt {
    /// Loads the library and allocates its scratch.
    ///
    /// # Errors
    /// [`CudaError::NoBlasLt`] where it is not installed, [`CudaError::BlasLt`], those of the allocation.
    pub fn open(gpu: &Gpu) -> Result<Self> {
        // SAFETY: only asks whether the library can be opened.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoBlasLt);
        }
        gpu.bind()?;
        let workspace = DeviceBuf::uninit(gpu, WORKSPACE)?;
        let handle = named("cublasLtCreate", result::create_handle())?;
        Ok(Self { gpu: gpu.clone(), handle, workspace, plans: Mutex::default() })
    }

    /// Enqueues a product. The first of its kind also picks the algorithm, which takes about a millisecond.
    ///
    /// # Errors
    /// [`CudaError::BlasOperand`] for a buffer too short for its sizes, [`CudaError::BlasLt`], also where the library
    /// has no algorithm for the product.
    pub fn multiply<T: BlasElement, O: BlasElement>(
        &self,
        product: &Product,
        a: View<'_, T>,
        b: View<'_, T>,
        c: &mut ViewMut<'_, O>,
    ) -> Result<()> {
        product.check_all(a.len(), b.len(), c.len())?;
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        self.gpu.bind()?;
        let align = |address: u64| (1u32 << address.trailing_zeros().min(31)).min(MAX_ALIGN as u32);
        // The library's own first operand is our B, see `Plan::new`.
        let key = (*product, [T::TYPE, O::TYPE], [align(b.ptr()), align(a.ptr()), align(c.ptr())]);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = match plans.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(slot) => slot.insert(Plan::new(self.handle, &key)?),
        };
        let (one, beta) = (1.0f32, if product.accumulate { 1.0f32 } else { 0.0 });
        let [first, second, out] = &plan.layouts;
        let target = c.ptr() as *mut c_void;
        // SAFETY: the descriptors are alive and were made for this product, whose operands' lengths were checked; the
        // scratch belongs to this object and is used on one stream only; the factors outlive the call.
        let done = unsafe {
            result::matmul(
                self.handle,
                plan.desc.0,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                b.ptr() as *const c_void,
                first.0,
                a.ptr() as *const c_void,
                second.0,
                target,
                out.0,
                target,
                out.0,
                &plan.algo,
                self.workspace.view().ptr() as *mut c_void,
                WORKSPACE,
                self.gpu.compute().raw().cast(),
            )
        };
        named("cublasLtMatmul", done)
    }
}

impl Plan {
    /// A row-major matrix is its transpose in the library's column-major order, so Cᵀ = op(B)ᵀ·op(A)ᵀ is computed.
    fn new(handle: sys::cublasLtHandle_t, key: &Key) -> Result<Self> {
        let (product, [operands, results], alignments) = key;
        let compute = product.math.compute();
        let desc = named(
            "cublasLtMatmulDescCreate",
            result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F),
        )?;
        let desc = Desc(desc);
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        for (attribute, transposed) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, product.b.transposed),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, product.a.transposed),
        ] {
            // CUBLAS_OP_N and CUBLAS_OP_T.
            let value = i32::from(transposed);
            // SAFETY: the descriptor is alive; the attribute is four bytes, which are copied.
            let set =
                unsafe { result::set_matmul_desc_attribute(desc.0, attribute, (&raw const value).cast(), 4) };
            named("cublasLtMatmulDescSetAttribute", set)?;
        }
        let layout = |kind: &BlasType, rows: usize, cols: usize, ld: usize| {
            // Columns of the library are rows of ours.
            let made = result::create_matrix_layout(kind.0, cols as u64, rows as u64, ld as i64);
            named("cublasLtMatrixLayoutCreate", made).map(Layout)
        };
        let stored = |operand: Operand, rows: usize, cols: usize| match operand.transposed {
            true => layout(operands, cols, rows, operand.ld),
            false => layout(operands, rows, cols, operand.ld),
        };
        let layouts = [
            stored(product.b, product.k, product.n)?,
            stored(product.a, product.m, product.k)?,
            layout(results, product.m, product.n, product.ldc)?,
        ];
        let preference = Preference(named("cublasLtMatmulPreferenceCreate", result::create_matmul_pref())?);
        prefer(&preference, alignments)?;
        let [first, second, out] = &layouts;
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(handle, desc.0, first.0, second.0, out.0, out.0, preference.0)
        };
        let algo = named("cublasLtMatmulAlgoGetHeuristic", found)?.algo;
        Ok(Self { desc, layouts, algo })
    }
}

fn prefer(preference: &Preference, [first, second, out]: &[u32; 3]) -> Result<()> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: the preference is alive; the value holds `bytes` bytes, which are copied.
        let set = unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, bytes) };
        named("cublasLtMatmulPreferenceSetAttribute", set)
    };
    let workspace = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    set(workspace, (&raw const WORKSPACE_BYTES).cast(), size_of_val(&WORKSPACE_BYTES))?;
    for (attribute, bytes) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, first),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, second),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
    ] {
        set(attribute, std::ptr::from_ref(bytes).cast(), 4)?;
    }
    Ok(())
}

static WORKSPACE_BYTES: u64 = WORKSPACE as u64;

impl Drop for BlasLt {
    fn drop(&mut self) {
        let context = &self.gpu.context;
        // The scratch may still be in use.
        context.park(self.gpu.compute().synchronize());
        if let Ok(plans) = self.plans.get_mut() {
            plans.clear();
        }
        // SAFETY: the handle was created in `open`, and no plan is left.
        context.park(named("cublasLtDestroy", unsafe { result::destroy_handle(self.handle) }));
    }
}

impl std::fmt::Debug for BlasLt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlasLt").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_checked_as_they_are_stored() {
        let operand = |transposed, ld| Operand { transposed, ld };
        let mut p = Product {
            m: 3,
            n: 5,
            k: 7,
            a: operand(false, 7),
            b: operand(true, 9),
            ldc: 5,
            accumulate: false,
            math: BlasMath::Fast,
        };
        // B is stored [5, 7] with rows 9 apart: 4 · 9 + 7.
        assert!(p.check_all(21, 43, 15).is_ok());
        let bad = |a, b, c, want: &str| matches!(p.check_all(a, b, c), Err(CudaError::BlasOperand { operand, .. }) if operand == want);
        assert!(bad(20, 43, 15, "a") && bad(21, 42, 15, "b") && bad(21, 43, 14, "c"));
        p.b.ld = 6;
        assert!(p.check_all(21, 43, 15).is_err());
    }
}
