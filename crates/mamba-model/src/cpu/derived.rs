use super::buffer::Buffer;
use super::dims::{Dims, LANES};
use super::gemm::Packed;
use crate::params::{LayerParams, ParamTable};
use rayon::prelude::*;

/// A block's weights as the loops read them.
#[derive(Debug, Default)]
pub(super) struct LayerWeights {
    /// `[d_model, x | z]`; z starts at a whole group.
    pub in_proj: Packed,
    pub in_proj_bias: Option<Vec<f32>>,
    /// `[d_inner, q_cols]`.
    pub x_proj: Packed,
    /// `[dt_rank, d_inner]`.
    pub dt_proj: Packed,
    /// `[d_inner, d_model]`.
    pub out_proj: Packed,
    /// Transposes, for the backward pass.
    pub transposed: Option<Transposed>,
    /// Taps by lag: row j multiplies the sample j steps back. `[d_conv, wide]`.
    pub taps: Buffer,
    pub conv_bias: Buffer,
    pub dt_bias: Buffer,
    /// A · log2 e = -exp(A_log) · log2 e, `[block, states, lanes]`; zero in added states and channels.
    pub a2: Buffer,
    pub skip: Buffer,
}

/// Packed transposes of a block's projections.
#[derive(Debug, Default)]
pub(super) struct Transposed {
    /// The halves of in_proj that make x and z.
    pub in_proj_x: Packed,
    pub in_proj_z: Packed,
    pub x_proj: Packed,
    pub dt_proj: Packed,
    pub out_proj: Packed,
}

impl LayerWeights {
    fn new(d: &Dims, layer: &LayerParams, train: bool) -> Self {
        let (dm, w, di, qc, dr) = (d.d_model, d.wide(), d.d_inner, d.q_cols, d.dt_rank);
        Self {
            in_proj: Packed::new(dm, w + di),
            in_proj_bias: layer.in_proj_bias.map(|_| vec![0.0; w + di]),
            x_proj: Packed::new(di, qc),
            dt_proj: Packed::new(dr, di),
            out_proj: Packed::new(di, dm),
            transposed: train.then(|| Transposed {
                in_proj_x: Packed::new(di, dm),
                in_proj_z: Packed::new(di, dm),
                x_proj: Packed::new(qc, di),
                dt_proj: Packed::new(di, dr),
                out_proj: Packed::new(dm, di),
            }),
            taps: Buffer::zeros(d.d_conv * w),
            conv_bias: Buffer::zeros(w),
            dt_bias: Buffer::zeros(w),
            a2: Buffer::zeros(w * d.states),
            skip: Buffer::zeros(w),
        }
    }

    fn refresh(&mut self, d: &Dims, layer: &LayerParams, params: &[f32]) {
        let (dm, w, di, qc, dr) = (d.d_model, d.wide(), d.d_inner, d.q_cols, d.dt_rank);
        let in_proj = layer.in_proj.of(params);
        self.in_proj.set((0, 0), in_proj, 2 * di, (dm, di));
        self.in_proj.set((0, w), &in_proj[di..], 2 * di, (dm, di));
        if let (Some(out), Some(span)) = (&mut self.in_proj_bias, layer.in_proj_bias) {
            let bias = span.of(params);
            out[..di].copy_from_slice(&bias[..di]);
            out[w..w + di].copy_from_slice(&bias[di..]);
        }
        self.x_proj.set((0, 0), layer.x_proj.of(params), qc, (di, qc));
        self.dt_proj.set((0, 0), layer.dt_proj.of(params), di, (dr, di));
        self.out_proj.set((0, 0), layer.out_proj.of(params), dm, (di, dm));
        if let Some(t) = &mut self.transposed {
            t.in_proj_x.set_transposed((0, 0), in_proj, 2 * di, (di, dm));
            t.in_proj_z.set_transposed((0, 0), &in_proj[di..], 2 * di, (di, dm));
            t.x_proj.set_transposed((0, 0), layer.x_proj.of(params), qc, (qc, di));
            t.dt_proj.set_transposed((0, 0), layer.dt_proj.of(params), di, (di, dr));
            t.out_proj.set_transposed((0, 0), layer.out_proj.of(params), dm, (dm, di));
        }
        for (c, taps) in layer.conv_weight.of(params).chunks_exact(d.d_conv).enumerate() {
            for (lag, &tap) in taps.iter().rev().enumerate() {
                self.taps[lag * w + c] = tap;
            }
        }
        if let Some(span) = layer.conv_bias {
            self.conv_bias[..di].copy_from_slice(span.of(params));
        }
        self.dt_bias[..di].copy_from_slice(layer.dt_bias.of(params));
        self.skip[..di].copy_from_slice(layer.d.of(params));
        for (c, a_log) in layer.a_log.of(params).chunks_exact(d.d_state).enumerate() {
            let block = &mut self.a2[c / LANES * LANES * d.states..].as_chunks_mut::<LANES>().0;
            for (a2, &a_log) in block.iter_mut().zip(a_log) {
                let a = -libm::exp(f64::from(a_log));
                a2[c % LANES] = (a * std::f64::consts::LOG2_E) as f32;
            }
        }
    }

    fn len(&self) -> usize {
        let t = self.transposed.as_ref().map_or(0, |t| {
            t.in_proj_x.len() + t.in_proj_z.len() + t.x_proj.len() + t.dt_proj.len() + t.out_proj.len()
        });
        let packed = self.in_proj.len() + self.x_proj.len() + self.dt_proj.len() + self.out_proj.len();
        let rows = self.taps.len() + self.conv_bias.len() + self.dt_bias.len() + self.skip.len();
        t + packed + rows + self.a2.len() + self.in_proj_bias.as_ref().map_or(0, Vec::len)
    }
}

/// Every weight that the loops want in another form than the arena's.
#[derive(Debug)]
pub(super) struct Derived {
    pub layers: Vec<LayerWeights>,
    /// `[input_dim, d_model]` and its transpose.
    pub input: Option<(Packed, Packed)>,
    /// The head `[d_model, vocab_rows]` and its transpose.
    pub head: Option<(Packed, Packed)>,
}

impl Derived {
    pub fn new(d: &Dims, table: &ParamTable, train: bool) -> Self {
        let layers = table.layers.iter().map(|l| LayerWeights::new(d, l, train)).collect();
        let pair = |k: usize, n: usize| {
            let back = if train { Packed::new(n, k) } else { Packed::default() };
            (Packed::new(k, n), back)
        };
        Self {
            layers,
            input: table.input_proj.map(|_| pair(d.input_width, d.d_model)),
            head: table.embedding.map(|_| pair(d.d_model, d.vocab_rows)),
        }
    }

    pub fn refresh(&mut self, d: &Dims, table: &ParamTable, params: &[f32]) {
        let pairs = self.layers.par_iter_mut().zip(&table.layers);
        pairs.for_each(|(weights, layer)| weights.refresh(d, layer, params));
        if let (Some((fwd, back)), Some((span, _))) = (&mut self.input, table.input_proj) {
            fwd.set((0, 0), span.of(params), d.d_model, (d.input_width, d.d_model));
            if back.len() > 0 {
                back.set_transposed((0, 0), span.of(params), d.d_model, (d.d_model, d.input_width));
            }
        }
        if let (Some((fwd, back)), Some(span)) = (&mut self.head, table.lm_head.or(table.embedding)) {
            fwd.set_transposed((0, 0), span.of(params), d.d_model, (d.d_model, d.vocab_rows));
            if back.len() > 0 {
                back.set((0, 0), span.of(params), d.d_model, (d.vocab_rows, d.d_model));
            }
        }
    }

    pub fn len(&self) -> usize {
        let pair = |p: &Option<(Packed, Packed)>| p.as_ref().map_or(0, |(a, b)| a.len() + b.len());
        self.layers.iter().map(LayerWeights::len).sum::<usize>() + pair(&self.input) + pair(&self.head)
    }
}
