//! Lists the kernels of this build, and multiplies two matrices where there is a GPU.

use mamba_cuda::{DeviceBuf, Gpu};
use mamba_kernels::Kernels;
use mamba_kernels::gemm::{Gemm, Layout, Precision, Shape};

fn main() -> Result<(), mamba_kernels::KernelError> {
    println!("{} kernels in this build", mamba_kernels::entries().count());
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    let kernels = Kernels::new(&gpu);
    let (m, n, k) = (64, 32, 16);
    let a = DeviceBuf::from_host(&gpu, &vec![0.5f32; m * k])?;
    let b = DeviceBuf::from_host(&gpu, &vec![2.0f32; k * n])?;
    let mut c = DeviceBuf::<f32>::uninit(&gpu, m * n)?;
    let mut turns = DeviceBuf::<i32>::zeros(&gpu, 1024)?;
    Gemm {
        shape: Shape::dense(Layout::Nn, m, n, k),
        a: a.view(),
        b: b.view(),
        bias: None,
        c: c.view_mut(),
        accumulate: false,
        precision: Precision::Exact,
        turns: turns.view_mut(),
    }
    .launch(&kernels)?;
    println!("every element is {} (16 expected)", c.to_host(gpu.compute())?[0]);
    Ok(())
}
