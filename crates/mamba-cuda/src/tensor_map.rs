//! Descriptors of the bulk tensor copy engine (compute capability 9.0).

use crate::driver::check;
use crate::error::Result;
use cudarc::driver::sys;

/// Element types of a tensor map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapElement {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
}

impl MapElement {
    fn raw(self) -> (sys::CUtensorMapDataType, u64) {
        match self {
            Self::F16 => (sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2),
            Self::Bf16 => (sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2),
            Self::F32 => (sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4),
        }
    }
}

/// A row-major matrix and the box that one copy moves, with the 128-byte swizzle; out of range reads give zeros.
#[derive(Debug, Clone, Copy)]
pub struct MatrixMap {
    /// Element type.
    pub element: MapElement,
    /// Device address, a multiple of 16.
    pub address: u64,
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix.
    pub cols: u64,
    /// Elements between rows; times the element size a multiple of 16.
    pub ld: u64,
    /// Rows of the box, at most 256.
    pub box_rows: u32,
    /// Columns of the box; 128 bytes at most.
    pub box_cols: u32,
}

/// The descriptor's bytes, as a kernel takes them.
#[derive(Debug, Clone, Copy)]
pub struct TensorMap(sys::CUtensorMap);

impl TensorMap {
    /// Encodes a descriptor.
    ///
    /// # Errors
    /// Those of the driver, for addresses, strides or boxes that the copy engine does not take.
    pub fn new(matrix: &MatrixMap) -> Result<Self> {
        let (element, bytes) = matrix.element.raw();
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (dims, strides) = ([matrix.cols, matrix.rows], [matrix.ld * bytes]);
        let (boxes, steps) = ([matrix.box_cols, matrix.box_rows], [1u32, 1]);
        // SAFETY: all arrays hold as many entries as rank 2 asks for; the address is only stored.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                2,
                matrix.address as *mut std::ffi::c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(code, "cuTensorMapEncodeTiled")?;
        Ok(Self(map))
    }

    /// The 128 bytes of the descriptor.
    pub fn bytes(&self) -> [u8; 128] {
        bytemuck::cast(self.0.opaque)
    }
}
