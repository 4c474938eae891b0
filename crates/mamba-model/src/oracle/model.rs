use super::conv::{Conv, ConvOut};
use super::loss::{CrossEntropy, cross_entropy};
use super::ops;
use super::scan::{Scan, ScanOut};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::input::ModelInput;
use crate::params::{LayerParams, ParamTable, Span};

/// A model with f64 weights. Inputs are trusted: lengths and ids are checked by debug assertions and indexing only.
#[derive(Debug, Clone)]
pub struct Oracle {
    config: ModelConfig,
    table: ParamTable,
    /// Weights, laid out as [`ParamTable`] says.
    pub params: Vec<f64>,
}

/// Everything a forward pass leaves for the backward.
#[derive(Debug, Clone)]
pub struct Trace {
    batch: usize,
    seq_len: usize,
    /// Input of the first block.
    start: Vec<f64>,
    dense: Vec<f64>,
    ids: Vec<u32>,
    reset: Option<Vec<u8>>,
    layers: Vec<LayerTrace>,
    last: Vec<f64>,
    rms: Vec<f64>,
    /// Final norm's output, `[batch, seq_len, d_model]`.
    pub temporal: Vec<f64>,
    /// `[n_layers, batch, d_inner, d_conv - 1]`.
    pub conv_state: Vec<f64>,
    /// `[n_layers, batch, d_inner, d_state]`.
    pub ssm_state: Vec<f64>,
}

#[derive(Debug, Clone)]
struct LayerTrace {
    input: Vec<f64>,
    rms: Vec<f64>,
    normed: Vec<f64>,
    x: Vec<f64>,
    z: Vec<f64>,
    conv_in: Vec<f64>,
    ssm_in: Vec<f64>,
    conv: ConvOut,
    low: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    delta: Vec<f64>,
    scan: ScanOut,
}

/// Gradients of a backward pass.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Laid out as the parameters.
    pub params: Vec<f64>,
    /// `[batch, seq_len, input_dim]`; empty for a language model.
    pub input: Vec<f64>,
}

impl Oracle {
    /// A model with these weights (laid out as [`ParamTable`] says).
    ///
    /// # Errors
    /// Those of [`ParamTable::new`].
    pub fn new(config: &ModelConfig, params: Vec<f64>) -> Result<Self> {
        let table = ParamTable::new(config)?;
        debug_assert_eq!(params.len(), table.arena_len());
        Ok(Self { config: config.clone(), table, params })
    }

    /// Names and places of the weights.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Runs the model from a carried state (see [`Trace`] for the layouts; empty slices: zeros).
    pub fn forward(
        &self,
        batch: usize,
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        (conv, ssm): (&[f64], &[f64]),
    ) -> Trace {
        let c = &self.config.backbone;
        let (dm, di) = (c.d_model, c.d_inner());
        let (dense, ids): (Vec<f64>, Vec<u32>) = match input {
            ModelInput::Dense(x) => (x.iter().map(|&v| f64::from(v)).collect(), Vec::new()),
            ModelInput::Tokens(ids) => (Vec::new(), ids.to_vec()),
        };
        let start = self.embed(&dense, &ids);
        let seq_len = start.len() / dm / batch;
        let mut residual = start.clone();
        let (mut layers, mut conv_state, mut ssm_state) = (Vec::new(), Vec::new(), Vec::new());
        for (i, layer) in self.table.layers.iter().enumerate() {
            let state = |all: &[f64], len: usize| match all.is_empty() {
                true => vec![0.0; len],
                false => all[i * len..(i + 1) * len].to_vec(),
            };
            let states = (state(conv, batch * di * (c.d_conv - 1)), state(ssm, batch * di * c.d_state));
            let (trace, delta) = self.block(layer, (batch, seq_len), &residual, reset, states);
            residual.iter_mut().zip(&delta).for_each(|(r, d)| *r += d);
            conv_state.extend_from_slice(&trace.conv.state);
            ssm_state.extend_from_slice(&trace.scan.h_last);
            layers.push(trace);
        }
        let (temporal, rms) = ops::rmsnorm(&residual, self.at(self.table.norm_f), c.rms_norm_eps);
        let reset = reset.map(<[u8]>::to_vec);
        Trace {
            batch,
            seq_len,
            start,
            dense,
            ids,
            reset,
            layers,
            last: residual,
            rms,
            temporal,
            conv_state,
            ssm_state,
        }
    }

    fn at(&self, span: Span) -> &[f64] {
        span.of(&self.params)
    }

    fn embed(&self, dense: &[f64], ids: &[u32]) -> Vec<f64> {
        let dm = self.config.backbone.d_model;
        if let Some(table) = self.table.embedding {
            let rows = self.at(table);
            return ids.iter().flat_map(|&id| rows[id as usize * dm..][..dm].iter().copied()).collect();
        }
        match self.table.input_proj {
            Some((weight, bias)) => {
                let mut x = ops::matmul(dense, self.at(weight), self.config.backbone.input_width(), dm);
                ops::add_bias(&mut x, self.at(bias));
                x
            }
            None => dense.to_vec(),
        }
    }

    /// One block: its trace and what it adds to the residual.
    fn block(
        &self,
        p: &LayerParams,
        (batch, seq_len): (usize, usize),
        residual: &[f64],
        reset: Option<&[u8]>,
        (conv_in, ssm_in): (Vec<f64>, Vec<f64>),
    ) -> (LayerTrace, Vec<f64>) {
        let c = &self.config.backbone;
        let (dm, di, dr, ds) = (c.d_model, c.d_inner(), c.dt_rank(), c.d_state);
        let (normed, rms) = ops::rmsnorm(residual, self.at(p.norm), c.rms_norm_eps);
        let mut xz = ops::matmul(&normed, self.at(p.in_proj), dm, 2 * di);
        if let Some(bias) = p.in_proj_bias {
            ops::add_bias(&mut xz, self.at(bias));
        }
        let [x, z] = split_columns(&xz, [di, di]);
        let conv = self.conv(p, (batch, seq_len), &x, &conv_in, reset).forward();
        let q = ops::matmul(&conv.out, self.at(p.x_proj), di, c.x_proj_cols());
        let [low, b, cc] = split_columns(&q, [dr, ds, ds]);
        let delta = ops::matmul(&low, self.at(p.dt_proj), dr, di);
        let a = self.a(p);
        let mut trace = LayerTrace {
            input: residual.to_vec(),
            rms,
            normed,
            x,
            z,
            conv_in,
            ssm_in,
            conv,
            low,
            b,
            c: cc,
            delta,
            scan: ScanOut { out: Vec::new(), y: Vec::new(), h: Vec::new(), h_last: Vec::new() },
        };
        trace.scan = self.scan(p, (batch, seq_len), &trace, &a, reset).forward();
        let mut out = ops::matmul(&trace.scan.out, self.at(p.out_proj), di, dm);
        if let Some(bias) = p.out_proj_bias {
            ops::add_bias(&mut out, self.at(bias));
        }
        (trace, out)
    }

    fn a(&self, p: &LayerParams) -> Vec<f64> {
        self.at(p.a_log).iter().map(|v| -v.exp()).collect()
    }

    fn conv<'a>(
        &'a self,
        p: &LayerParams,
        (batch, seq_len): (usize, usize),
        x: &'a [f64],
        state: &'a [f64],
        reset: Option<&'a [u8]>,
    ) -> Conv<'a> {
        let (channels, width) = (self.config.backbone.d_inner(), self.config.backbone.d_conv);
        let (weight, bias) = (self.at(p.conv_weight), p.conv_bias.map(|b| self.at(b)));
        Conv { batch, seq_len, channels, width, x, weight, bias, state, reset }
    }

    fn scan<'a>(
        &'a self,
        p: &LayerParams,
        (batch, seq_len): (usize, usize),
        t: &'a LayerTrace,
        a: &'a [f64],
        reset: Option<&'a [u8]>,
    ) -> Scan<'a> {
        Scan {
            batch,
            seq_len,
            channels: self.config.backbone.d_inner(),
            states: self.config.backbone.d_state,
            u: &t.conv.out,
            delta: &t.delta,
            a,
            b: &t.b,
            c: &t.c,
            d: self.at(p.d),
            delta_bias: self.at(p.dt_bias),
            z: Some(&t.z),
            h0: &t.ssm_in,
            reset,
        }
    }

    /// Exact gradients for the gradient of `temporal`; the carried-in state is a constant.
    pub fn backward(&self, trace: &Trace, d_temporal: &[f64]) -> Gradients {
        let mut grads = vec![0.0; self.params.len()];
        let (mut d, d_norm) =
            ops::rmsnorm_backward(&trace.last, self.at(self.table.norm_f), &trace.rms, d_temporal);
        add(&mut grads, self.table.norm_f, &d_norm);
        for (p, t) in self.table.layers.iter().zip(&trace.layers).rev() {
            let d_block = self.block_backward(p, trace, t, &d, &mut grads);
            d.iter_mut().zip(&d_block).for_each(|(d, b)| *d += b);
        }
        let input = self.embed_backward(trace, d, &mut grads);
        Gradients { params: grads, input }
    }

    fn block_backward(
        &self,
        p: &LayerParams,
        trace: &Trace,
        t: &LayerTrace,
        d: &[f64],
        grads: &mut [f64],
    ) -> Vec<f64> {
        let c = &self.config.backbone;
        let (dm, di, dr, ds) = (c.d_model, c.d_inner(), c.dt_rank(), c.d_state);
        let size = (trace.batch, trace.seq_len);
        let reset = trace.reset.as_deref();
        let (d_gated, d_out_proj) = ops::matmul_backward(&t.scan.out, self.at(p.out_proj), d, di, dm);
        add(grads, p.out_proj, &d_out_proj);
        if let Some(bias) = p.out_proj_bias {
            add(grads, bias, &ops::column_sums(d, dm));
        }
        let a = self.a(p);
        let s = self.scan(p, size, t, &a, reset).backward(&t.scan, &d_gated, None);
        let d_a_log: Vec<f64> = s.a.iter().zip(&a).map(|(d, a)| d * a).collect();
        add(grads, p.a_log, &d_a_log);
        add(grads, p.d, &s.d);
        add(grads, p.dt_bias, &s.delta_bias);
        let (d_low, d_dt_proj) = ops::matmul_backward(&t.low, self.at(p.dt_proj), &s.delta, dr, di);
        add(grads, p.dt_proj, &d_dt_proj);
        let d_q = join_columns([(&d_low, dr), (&s.b, ds), (&s.c, ds)]);
        let (mut d_u, d_x_proj) =
            ops::matmul_backward(&t.conv.out, self.at(p.x_proj), &d_q, di, c.x_proj_cols());
        add(grads, p.x_proj, &d_x_proj);
        d_u.iter_mut().zip(&s.u).for_each(|(a, b)| *a += b);
        let conv = self.conv(p, size, &t.x, &t.conv_in, reset).backward(&t.conv.pre, &d_u, None);
        add(grads, p.conv_weight, &conv.weight);
        if let Some(bias) = p.conv_bias {
            add(grads, bias, &conv.bias);
        }
        let d_xz = join_columns([(&conv.x, di), (&s.z, di)]);
        let (d_normed, d_in_proj) = ops::matmul_backward(&t.normed, self.at(p.in_proj), &d_xz, dm, 2 * di);
        add(grads, p.in_proj, &d_in_proj);
        if let Some(bias) = p.in_proj_bias {
            add(grads, bias, &ops::column_sums(&d_xz, 2 * di));
        }
        let (d_residual, d_norm) = ops::rmsnorm_backward(&t.input, self.at(p.norm), &t.rms, &d_normed);
        add(grads, p.norm, &d_norm);
        d_residual
    }

    /// Gradient of the model's input from that of the first block's.
    fn embed_backward(&self, trace: &Trace, d: Vec<f64>, grads: &mut [f64]) -> Vec<f64> {
        let dm = self.config.backbone.d_model;
        debug_assert_eq!(d.len(), trace.start.len());
        if let Some(table) = self.table.embedding {
            for (&id, d) in trace.ids.iter().zip(d.chunks(dm)) {
                let row = &mut table.of_mut(grads)[id as usize * dm..][..dm];
                row.iter_mut().zip(d).for_each(|(g, d)| *g += d);
            }
            return Vec::new();
        }
        match self.table.input_proj {
            Some((weight, bias)) => {
                let width = self.config.backbone.input_width();
                let (d_x, d_w) = ops::matmul_backward(&trace.dense, self.at(weight), &d, width, dm);
                add(grads, weight, &d_w);
                add(grads, bias, &ops::column_sums(&d, dm));
                d_x
            }
            None => d,
        }
    }

    /// Head of a language model, `[rows, d_model]`.
    fn head(&self) -> Option<Span> {
        self.table.lm_head.or(self.table.embedding)
    }

    /// Logits `[batch, seq_len, rows]` of a language model; empty for a bare backbone.
    pub fn logits(&self, trace: &Trace) -> Vec<f64> {
        let dm = self.config.backbone.d_model;
        let Some(head) = self.head() else { return Vec::new() };
        let rows = self.at(head);
        let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
        trace.temporal.chunks(dm).flat_map(|x| rows.chunks(dm).map(move |w| dot(x, w))).collect()
    }

    /// Loss sums of a language model and the gradients of `scale · nll`.
    pub fn loss_backward(
        &self,
        trace: &Trace,
        targets: &[i32],
        weights: Option<&[f32]>,
        scale: f64,
    ) -> (CrossEntropy, Gradients) {
        let dm = self.config.backbone.d_model;
        let sums = cross_entropy(&self.logits(trace), targets, weights);
        let mut d_temporal = vec![0.0; trace.temporal.len()];
        let mut d_head = vec![0.0; self.params.len()];
        if let Some(head) = self.head() {
            let (rows, d_rows) = (self.at(head), head.of_mut(&mut d_head));
            let count = rows.len() / dm;
            for (t, d_logits) in sums.d_logits.chunks(count).enumerate() {
                for (v, d) in d_logits.iter().enumerate() {
                    for i in 0..dm {
                        d_temporal[t * dm + i] += scale * d * rows[v * dm + i];
                        d_rows[v * dm + i] += scale * d * trace.temporal[t * dm + i];
                    }
                }
            }
        }
        let mut grads = self.backward(trace, &d_temporal);
        grads.params.iter_mut().zip(&d_head).for_each(|(g, d)| *g += d);
        (sums, grads)
    }
}

fn add(grads: &mut [f64], span: Span, d: &[f64]) {
    span.of_mut(grads).iter_mut().zip(d).for_each(|(g, d)| *g += d);
}

/// Cuts rows into column blocks of these widths.
fn split_columns<const N: usize>(x: &[f64], widths: [usize; N]) -> [Vec<f64>; N] {
    let total: usize = widths.iter().sum();
    let mut from = 0;
    widths.map(|w| {
        let block = x.chunks(total).flat_map(|row| row[from..from + w].iter().copied()).collect();
        from += w;
        block
    })
}

/// The inverse of [`split_columns`].
fn join_columns<const N: usize>(blocks: [(&[f64], usize); N]) -> Vec<f64> {
    let rows = blocks[0].0.len() / blocks[0].1;
    (0..rows)
        .flat_map(|r| blocks.iter().flat_map(move |(x, w)| x[r * w..(r + 1) * w].iter().copied()))
        .collect()
}
