//! Pointwise functions, RMSNorm and linear maps.

/// `ln(1 + e^x)`, the identity above 20 as in the reference.
pub fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { libm::log1p(x.exp()) }
}

/// Derivative of [`softplus`].
pub fn softplus_slope(x: f64) -> f64 {
    if x > 20.0 { 1.0 } else { sigmoid(x) }
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// Derivative of [`silu`].
pub fn silu_slope(x: f64) -> f64 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

/// y = x / rms · weight for each row of `weight.len()` columns. Returns (y, rms).
pub fn rmsnorm(x: &[f64], weight: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let n = weight.len();
    let rms: Vec<f64> =
        x.chunks(n).map(|r| (r.iter().map(|v| v * v).sum::<f64>() / n as f64 + eps).sqrt()).collect();
    let y =
        x.chunks(n).zip(&rms).flat_map(|(r, s)| r.iter().zip(weight).map(move |(v, w)| v / s * w)).collect();
    (y, rms)
}

/// Adjoint of [`rmsnorm`]: (d_x, d_weight).
pub fn rmsnorm_backward(x: &[f64], weight: &[f64], rms: &[f64], d_y: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let n = weight.len();
    let (mut d_x, mut d_weight) = (Vec::with_capacity(x.len()), vec![0.0; n]);
    for ((x, d_y), s) in x.chunks(n).zip(d_y.chunks(n)).zip(rms) {
        let dot: f64 = x.iter().zip(d_y).zip(weight).map(|((x, d), w)| x * d * w).sum();
        for i in 0..n {
            d_x.push(d_y[i] * weight[i] / s - x[i] * dot / (n as f64 * s * s * s));
            d_weight[i] += d_y[i] * x[i] / s;
        }
    }
    (d_x, d_weight)
}

/// y `[rows, cols]` = x `[rows, inner]` · w `[inner, cols]`.
pub fn matmul(x: &[f64], w: &[f64], inner: usize, cols: usize) -> Vec<f64> {
    let mut y = vec![0.0; x.len() / inner * cols];
    for (x, y) in x.chunks(inner).zip(y.chunks_mut(cols)) {
        for (v, w) in x.iter().zip(w.chunks(cols)) {
            for (y, w) in y.iter_mut().zip(w) {
                *y += v * w;
            }
        }
    }
    y
}

/// Adjoint of [`matmul`]: (d_x, d_w).
pub fn matmul_backward(x: &[f64], w: &[f64], d_y: &[f64], inner: usize, cols: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut d_x, mut d_w) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    for ((x, d_x), d_y) in x.chunks(inner).zip(d_x.chunks_mut(inner)).zip(d_y.chunks(cols)) {
        for i in 0..inner {
            let (row, d_row) = (&w[i * cols..(i + 1) * cols], &mut d_w[i * cols..(i + 1) * cols]);
            for j in 0..cols {
                d_x[i] += d_y[j] * row[j];
                d_row[j] += d_y[j] * x[i];
            }
        }
    }
    (d_x, d_w)
}

/// Adds `bias` to every row.
pub fn add_bias(y: &mut [f64], bias: &[f64]) {
    for row in y.chunks_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
    }
}

/// Sums over rows of `cols` columns: the adjoint of [`add_bias`].
pub fn column_sums(d_y: &[f64], cols: usize) -> Vec<f64> {
    let mut sums = vec![0.0; cols];
    for row in d_y.chunks(cols) {
        sums.iter_mut().zip(row).for_each(|(s, d)| *s += d);
    }
    sums
}
