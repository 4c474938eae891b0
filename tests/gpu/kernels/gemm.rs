use crate::support::{Test, bits, close, draws, poisoned, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::gemm::{Gemm, GemmThin, Layout, Precision, Shape};
use mamba_kernels::{Elem, Kernels};

/// Sizes: whole tiles, single elements, odd and unaligned ones, thin products, long sums that are cut.
const SIZES: [(usize, usize, usize); 8] = [
    (128, 256, 64),
    (1, 1, 1),
    (7, 5, 3),
    (129, 131, 67),
    (257, 80, 1536),
    (384, 192, 48),
    (300, 80, 4096),
    (200, 304, 2048),
];

/// Sizes of products with few rows: one, several, more than a block takes; odd and unaligned ones, sums longer than a tile.
const THIN: [(usize, usize, usize); 6] =
    [(1, 1, 1), (7, 5, 3), (64, 192, 768), (9, 80, 1536), (3, 131, 1030), (130, 48, 520)];

/// (name, test) of the products.
pub fn trials() -> Vec<(String, Test)> {
    let mut all = Vec::new();
    for layout in [Layout::Nn, Layout::Nt, Layout::Tn] {
        for size in SIZES {
            for pad in [0, 1, 8] {
                let shape = padded(layout, size, pad);
                let name =
                    |kind: &str| format!("gemm/{kind}/{layout:?}/{}x{}x{}+{pad}", size.0, size.1, size.2);
                // Bounds: measured 4e-7, 3.7e-6 (TF32 sums drop bits), 2.4e-3, 3.0e-4, 2.3e-6.
                all.push(trial(name("f32"), move |k| run::<f32, f32>(k, shape, Precision::Exact, 2e-6)));
                all.push(trial(name("tf32"), move |k| run::<f32, f32>(k, shape, Precision::Tf32, 1e-5)));
                all.push(trial(name("bf16_f32"), move |k| {
                    run::<bf16, f32>(k, shape, Precision::Exact, 5e-6)
                }));
                all.push(trial(name("f16_f32"), move |k| run::<f16, f32>(k, shape, Precision::Exact, 5e-6)));
                if layout != Layout::Tn {
                    all.push(trial(name("bf16"), move |k| {
                        run::<bf16, bf16>(k, shape, Precision::Exact, 4e-3)
                    }));
                    all.push(trial(name("f16"), move |k| run::<f16, f16>(k, shape, Precision::Exact, 5e-4)));
                }
            }
        }
    }
    for size in THIN {
        for pad in [0, 1, 8] {
            let name = |kind: &str| format!("gemm/thin/{kind}/{}x{}x{}+{pad}", size.0, size.1, size.2);
            let (nn, nt) = (padded(Layout::Nn, size, pad), padded(Layout::Nt, size, pad));
            all.push(trial(name("f32/Nn"), move |k| thin::<f32, f32>(k, nn, 2e-6)));
            all.push(trial(name("f32/Nt"), move |k| thin::<f32, f32>(k, nt, 2e-6)));
            all.push(trial(name("bf16/Nn"), move |k| thin::<bf16, bf16>(k, nn, 4e-3)));
            all.push(trial(name("bf16/Nt"), move |k| thin::<bf16, f32>(k, nt, 2e-6)));
            all.push(trial(name("f16/Nn"), move |k| thin::<f16, f16>(k, nn, 5e-4)));
            all.push(trial(name("f16/Nt"), move |k| thin::<f16, f32>(k, nt, 2e-6)));
        }
    }
    all
}

/// Against the reference; the last row alone has the bits that it has among the others.
fn thin<T: Elem, O: Elem>(kernels: &Kernels, s: Shape, bound: f64) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let upload = |e: mamba_cuda::CudaError| e.to_string();
    let gpu = kernels.gpu();
    let rows_b = if s.layout == Layout::Nt { s.n } else { s.k };
    let (a, b) = (draws::<T>("a", s.m * s.lda), draws::<T>("b", rows_b * s.ldb));
    let bias = draws::<f32>("bias", s.n);
    let (da, db) =
        (DeviceBuf::from_host(gpu, &a).map_err(upload)?, DeviceBuf::from_host(gpu, &b).map_err(upload)?);
    let dbias = DeviceBuf::from_host(gpu, &bias).map_err(upload)?;
    let run = |first: usize| -> Result<Vec<O>, String> {
        let mut c = poisoned::<O>(gpu, (s.m - first) * s.ldc).map_err(text)?;
        let a = da.view().slice(first * s.lda..da.len()).map_err(upload)?;
        let shape = Shape { m: s.m - first, ..s };
        let call = GemmThin { shape, a, b: db.view(), bias: Some(dbias.view()), c: c.view_mut() };
        call.launch(kernels).map_err(text)?;
        c.to_host(gpu.compute()).map_err(upload)
    };
    let (all, last) = (run(0)?, run(s.m - 1)?);
    if bits(&all[(s.m - 1) * s.ldc..]) != bits(&last) {
        return Err("a row alone has other bits".to_owned());
    }
    let product = reference(&wide(&a), &wide(&b), &s);
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for (i, row) in all.chunks_exact(s.ldc).enumerate() {
        got.extend(wide(&row[..s.n]));
        want.extend((0..s.n).map(|j| product[i * s.n + j] + f64::from(bias[j])));
        if row[s.n..].iter().any(|v| !v.to_f32().is_nan()) {
            return Err(format!("wrote behind row {i}"));
        }
    }
    close("thin", &got, &want, bound)
}

fn trial(name: String, test: impl Fn(&Kernels) -> Result<(), String> + Send + 'static) -> (String, Test) {
    (name, Box::new(test))
}

fn padded(layout: Layout, (m, n, k): (usize, usize, usize), pad: usize) -> Shape {
    let s = Shape::dense(layout, m, n, k);
    Shape { lda: s.lda + pad, ldb: s.ldb + pad, ldc: s.ldc + pad, ..s }
}

/// The value that a tensor core sees: TF32 rounds to 10 bits of mantissa, ties away from zero.
fn operand<T: Elem>(x: &[T], precision: Precision) -> Vec<f64> {
    let tf32 = |v: f32| f32::from_bits((v.to_bits() + 0x1000) & !0x1fff);
    match (T::NAME, precision) {
        ("f32", Precision::Tf32) => x.iter().map(|v| f64::from(tf32(v.to_f32()))).collect(),
        _ => wide(x),
    }
}

fn run<T: Elem, O: Elem>(
    kernels: &Kernels,
    s: Shape,
    precision: Precision,
    bound: f64,
) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let gpu = kernels.gpu();
    let (rows_a, rows_b) =
        (if s.layout == Layout::Tn { s.k } else { s.m }, if s.layout == Layout::Nt { s.n } else { s.k });
    let (a, b) = (draws::<T>("a", rows_a * s.lda), draws::<T>("b", rows_b * s.ldb));
    let old = draws::<O>("c", s.m * s.ldc);
    let bias = draws::<f32>("bias", s.n);
    let want_plain = reference(&operand(&a, precision), &operand(&b, precision), &s);
    let upload = |e: mamba_cuda::CudaError| e.to_string();
    let (da, db) =
        (DeviceBuf::from_host(gpu, &a).map_err(upload)?, DeviceBuf::from_host(gpu, &b).map_err(upload)?);
    let dbias = DeviceBuf::from_host(gpu, &bias).map_err(upload)?;
    let mut turns = DeviceBuf::<i32>::zeros(gpu, 1 << 16).map_err(upload)?;
    for accumulate in [false, true] {
        if accumulate && O::NAME != "f32" {
            continue;
        }
        let mut bits = Vec::new();
        for _ in 0..2 {
            let mut c = match accumulate {
                true => DeviceBuf::from_host(gpu, &old).map_err(upload)?,
                false => poisoned::<O>(gpu, old.len()).map_err(text)?,
            };
            let call = Gemm {
                shape: s,
                a: da.view(),
                b: db.view(),
                bias: (!accumulate).then(|| dbias.view()),
                c: c.view_mut(),
                accumulate,
                precision,
                turns: turns.view_mut(),
            };
            call.launch(kernels).map_err(text)?;
            bits.push(c.to_host(gpu.compute()).map_err(upload)?);
        }
        if bits[0].iter().zip(&bits[1]).any(|(x, y)| x.to_f32().to_bits() != y.to_f32().to_bits()) {
            return Err("two runs differ".to_owned());
        }
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for i in 0..s.m {
            for j in 0..s.ldc {
                let value = f64::from(bits[0][i * s.ldc + j].to_f32());
                if j < s.n {
                    got.push(value);
                    let extra =
                        if accumulate { f64::from(old[i * s.ldc + j].to_f32()) } else { f64::from(bias[j]) };
                    want.push(want_plain[i * s.n + j] + extra);
                } else if !accumulate && !value.is_nan() {
                    return Err(format!("wrote between the rows at {i}, {j}"));
                }
            }
        }
        close(if accumulate { "accumulated" } else { "with bias" }, &got, &want, bound)?;
    }
    Ok(())
}

fn reference(a: &[f64], b: &[f64], s: &Shape) -> Vec<f64> {
    let at = |i: usize, k: usize| if s.layout == Layout::Tn { a[k * s.lda + i] } else { a[i * s.lda + k] };
    let mut c = vec![0.0; s.m * s.n];
    for i in 0..s.m {
        for k in 0..s.k {
            let x = at(i, k);
            for j in 0..s.n {
                c[i * s.n + j] +=
                    x * if s.layout == Layout::Nt { b[j * s.ldb + k] } else { b[k * s.ldb + j] };
            }
        }
    }
    c
}
