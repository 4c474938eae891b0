use crate::support::{Test, close, draws, poisoned, wide};
use half::{bf16, f16};
use mamba_cuda::DeviceBuf;
use mamba_kernels::embedding::{EmbeddingBackward, EmbeddingForward};
use mamba_kernels::loss::{CrossEntropy, LossTotals, SumLoss};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use mamba_model::oracle::cross_entropy;
use std::marker::PhantomData;

/// (name, test) of loss and embedding.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for size in [(5, 7), (33, 256), (9, 50_304), (4, 1001), (1, 1), (300, 16_388), (3, 70_004), (140, 20_001)]
    {
        all.push((format!("loss/f32/{size:?}"), Box::new(move |k| loss::<f32>(k, size, 1e-6))));
        all.push((format!("loss/bf16/{size:?}"), Box::new(move |k| loss::<bf16>(k, size, 4e-3))));
        all.push((format!("loss/f16/{size:?}"), Box::new(move |k| loss::<f16>(k, size, 1e-3))));
    }
    for columns in [40, 20_000] {
        all.push((format!("loss/nan_stays_in_its_row/{columns}"), Box::new(move |k| bad_rows(k, columns))));
    }
    for size in
        [(1, 5, 3), (100, 7, 33), (1000, 256, 64), (5000, 3, 128), (4097, 50_000, 24), (2050, 300, 772)]
    {
        all.push((format!("embedding/{size:?}"), Box::new(move |k| embedding(k, size))));
    }
    all
}

fn loss<O: Elem>(kernels: &Kernels, (rows, columns): (usize, usize), bound: f64) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let logits: Vec<f32> = draws::<f32>("logits", rows * columns).iter().map(|v| v * 3.0).collect();
    let targets: Vec<i32> =
        (0..rows).map(|i| if (i + i / 50) % 3 == 1 { -100 } else { (i * 7919 % columns) as i32 }).collect();
    let weights: Vec<f32> = draws::<f32>("weights", rows).iter().map(|v| v.abs()).collect();
    let (dl, dt) =
        (DeviceBuf::from_host(gpu, &logits).map_err(up)?, DeviceBuf::from_host(gpu, &targets).map_err(up)?);
    let (dw, scale) =
        (DeviceBuf::from_host(gpu, &weights).map_err(up)?, DeviceBuf::from_host(gpu, &[1.0f32]).map_err(up)?);
    let mut nll = poisoned::<f32>(gpu, rows).map_err(text)?;
    let mut d = poisoned::<O>(gpu, rows * columns).map_err(text)?;
    let mut totals = DeviceBuf::<LossTotals>::zeros(gpu, 1).map_err(up)?;
    CrossEntropy {
        logits: dl.view(),
        targets: dt.view(),
        weights: Some(dw.view()),
        scale: scale.view(),
        nll: nll.view_mut(),
        d_logits: Some(d.view_mut()),
        columns: Val(columns as i64),
        rows,
        marker,
    }
    .launch(kernels)
    .map_err(text)?;
    SumLoss {
        nll: nll.view(),
        targets: dt.view(),
        weights: Some(dw.view()),
        totals: totals.view_mut(),
        rows: Val(rows as i64),
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    let want = cross_entropy(&wide(&logits), &targets, Some(&weights));
    let got = totals.to_host(stream).map_err(up)?[0];
    close("nll", &[got.nll], &[want.nll], 1e-6)?;
    close("weight", &[got.weight], &[want.weight], 1e-6)?;
    if got.tokens != want.tokens {
        return Err(format!("{} tokens counted, {} expected", got.tokens, want.tokens));
    }
    close("d_logits", &wide(&d.to_host(stream).map_err(up)?), &want.d_logits, bound)
}

/// NaN and Inf show in loss and gradient of their own rows; −Inf is a probability of 0.
fn bad_rows(kernels: &Kernels, columns: usize) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, rows) = (kernels.gpu(), kernels.gpu().compute(), 400);
    let mut logits = draws::<f32>("logits", rows * columns);
    for (row, value) in [(1, f32::NAN), (140, f32::INFINITY), (3, f32::NEG_INFINITY)] {
        logits[row * columns + columns / 2] = value;
    }
    let logits = DeviceBuf::from_host(gpu, &logits).map_err(up)?;
    let targets = DeviceBuf::from_host(gpu, &vec![5i32; rows]).map_err(up)?;
    let scale = DeviceBuf::from_host(gpu, &[1.0f32]).map_err(up)?;
    let mut nll = poisoned::<f32>(gpu, rows).map_err(text)?;
    let mut d = poisoned::<f32>(gpu, rows * columns).map_err(text)?;
    let call = CrossEntropy {
        logits: logits.view(),
        targets: targets.view(),
        weights: None,
        scale: scale.view(),
        nll: nll.view_mut(),
        d_logits: Some(d.view_mut()),
        columns: Val(columns as i64),
        rows,
        marker: PhantomData,
    };
    call.launch(kernels).map_err(text)?;
    let (nll, d) = (nll.to_host(stream).map_err(up)?, d.to_host(stream).map_err(up)?);
    for (row, d) in d.chunks(columns).enumerate() {
        let right = match row {
            1 | 140 => nll[row].is_nan() && d.iter().all(|v| v.is_nan()),
            3 => nll[row].is_finite() && d[columns / 2] == 0.0,
            _ => nll[row].is_finite() && d.iter().all(|v| v.is_finite()),
        };
        if !right {
            return Err(format!("row {row}: loss {}", nll[row]));
        }
    }
    Ok(())
}

fn embedding(kernels: &Kernels, (tokens, rows, dim): (usize, usize, usize)) -> Result<(), String> {
    let text = |e: mamba_kernels::KernelError| e.to_string();
    let up = |e: mamba_cuda::CudaError| e.to_string();
    let (gpu, stream, marker) = (kernels.gpu(), kernels.gpu().compute(), PhantomData);
    let table = draws::<f32>("table", rows * dim);
    // Every third token is the same: a long run of one id.
    let ids: Vec<u32> =
        (0..tokens).map(|i| if i % 3 == 0 { 2 % rows as u32 } else { (i * 7919 % rows) as u32 }).collect();
    let d_out = draws::<f32>("d_out", tokens * dim);
    let old = draws::<f32>("old", rows * dim);
    let (dtable, dids) =
        (DeviceBuf::from_host(gpu, &table).map_err(up)?, DeviceBuf::from_host(gpu, &ids).map_err(up)?);
    let dd_out = DeviceBuf::from_host(gpu, &d_out).map_err(up)?;
    let mut out = poisoned::<f32>(gpu, tokens * dim).map_err(text)?;
    let (table_view, ids_view) = (dtable.view(), dids.view());
    EmbeddingForward {
        table: table_view,
        ids: ids_view,
        out: out.view_mut(),
        dim: Val(dim as i64),
        tokens: Val(tokens as i32),
        marker,
    }
    .launch(kernels)
    .map_err(text)?;
    let want: Vec<f32> = ids.iter().flat_map(|&id| table[id as usize * dim..][..dim].to_vec()).collect();
    if out.to_host(stream).map_err(up)? != want {
        return Err("the lookup is not exact".to_owned());
    }
    let mut bits = Vec::new();
    for _ in 0..2 {
        let mut d_table = DeviceBuf::from_host(gpu, &old).map_err(up)?;
        let mut counts = DeviceBuf::<i32>::uninit(gpu, rows).map_err(up)?;
        let mut sorted = DeviceBuf::<i32>::uninit(gpu, 2 * tokens).map_err(up)?;
        let mut edges = poisoned::<f32>(gpu, EmbeddingBackward::edge_len(tokens, dim)).map_err(text)?;
        let call = EmbeddingBackward {
            ids: ids_view,
            d_out: dd_out.view(),
            d_table: d_table.view_mut(),
            counts: counts.view_mut(),
            sorted: sorted.view_mut(),
            edges: edges.view_mut(),
            dim,
        };
        call.launch(kernels).map_err(text)?;
        bits.push(d_table.to_host(stream).map_err(up)?);
    }
    if bits[0] != bits[1] {
        return Err("two runs differ".to_owned());
    }
    let mut want = wide(&old);
    for (t, &id) in ids.iter().enumerate() {
        (0..dim).for_each(|i| want[id as usize * dim + i] += f64::from(d_out[t * dim + i]));
    }
    // f32 sums in token order; measured at most 1.7e-7.
    close("d_table", &wide(&bits[0]), &want, 2e-6)
}
