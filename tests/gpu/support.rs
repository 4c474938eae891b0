//! Random data, poisoned buffers, comparison.

use mamba_cuda::{DeviceBuf, Gpu};
use mamba_kernels::{Elem, Kernels, Result};
use mamba_model::rng::SplitMix64;

/// A test of the device.
pub type Test = Box<dyn Fn(&Kernels) -> std::result::Result<(), String> + Send>;

/// Seeded values of a storage type, standard normal.
pub fn draws<T: Elem>(label: &str, n: usize) -> Vec<T> {
    let mut rng = SplitMix64::new(17, label);
    (0..n).map(|_| T::from_f32(rng.normal() as f32)).collect()
}

/// Widened to f64.
pub fn wide<T: Elem>(x: &[T]) -> Vec<f64> {
    x.iter().map(|v| f64::from(v.to_f32())).collect()
}

/// Device memory full of NaN.
pub fn poisoned<T: Elem>(gpu: &Gpu, n: usize) -> Result<DeviceBuf<T>> {
    let mut buf = DeviceBuf::uninit(gpu, n)?;
    buf.view_mut().fill_bytes(0xff, gpu.compute())?;
    Ok(buf)
}

/// ‖got − want‖ / ‖want‖, NaN where one is.
pub fn error(got: &[f64], want: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut got.iter().zip(want).map(|(g, w)| g - w));
    let size = norm(&mut want.iter().copied());
    if size > 0.0 { off / size } else { off }
}

/// Fails where the error is not below the bound, or the lengths differ.
pub fn close(what: &str, got: &[f64], want: &[f64], bound: f64) -> std::result::Result<(), String> {
    let e = error(got, want);
    match got.len() == want.len() && e < bound {
        true => Ok(()),
        false => Err(format!("{what}: error {e:.2e}, bound {bound:.1e}")),
    }
}

/// Bound of an output that is rounded to a storage type once: half an ulp, with room for the f32 arithmetic.
pub fn rounding<T: Elem>() -> f64 {
    match T::NAME {
        "bf16" => 4e-3,
        "f16" => 6e-4,
        _ => 2e-6,
    }
}

/// The bytes, for comparisons that NaN and signed zeros take part in.
pub fn bits<T: mamba_kernels::CppType>(x: &[T]) -> &[u8] {
    bytemuck::cast_slice(x)
}
