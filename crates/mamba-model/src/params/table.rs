use super::init::Init;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use std::collections::HashMap;
use std::ops::Range;

/// Every tensor starts at a multiple of this many elements, so that 16-byte vector accesses are aligned in
/// f32 and in half precision. The gap behind a tensor holds zeros, and zeros stay zeros under AdamW.
pub const ALIGN: usize = 64;

/// Elements of the largest arena.
const MAX_ARENA: usize = 1 << 40;

/// Where a tensor lies in every arena of the model (master, shadow, gradient, moments).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// As an index range.
    pub fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The tensor inside an arena of this model.
    pub fn of<T>(self, arena: &[T]) -> &[T] {
        &arena[self.range()]
    }

    /// The tensor inside an arena of this model, mutable.
    pub fn of_mut<T>(self, arena: &mut [T]) -> &mut [T] {
        &mut arena[self.range()]
    }
}

/// What happens to a tensor in half-precision training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// f32 master and a half-precision shadow that the products read.
    Bulk,
    /// Always f32: A_log, D, norms, biases, convolution.
    Keep,
}

/// One tensor of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Name in files and error messages.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Place in every arena.
    pub span: Span,
    /// Treatment in half precision.
    pub storage: Storage,
    /// Whether the reference model decays it: all but A_log, D, the Δ bias and the norm scales.
    pub decay: bool,
    /// Initial values.
    pub init: Init,
}

/// Spans of one block. Layouts: linears are `[in, out]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerParams {
    /// RMSNorm scale `[d_model]`.
    pub norm: Span,
    /// `[d_model, 2·d_inner]`, columns `[x | z]`.
    pub in_proj: Span,
    /// `[2·d_inner]`.
    pub in_proj_bias: Option<Span>,
    /// `[d_inner, d_conv]`; the last tap multiplies the current sample.
    pub conv_weight: Span,
    /// `[d_inner]`.
    pub conv_bias: Option<Span>,
    /// `[d_inner, dt_rank + 2·d_state]`, columns `[dt | B | C]`.
    pub x_proj: Span,
    /// `[dt_rank, d_inner]`.
    pub dt_proj: Span,
    /// `[d_inner]`.
    pub dt_bias: Span,
    /// `[d_inner, d_state]`; A = -exp(A_log).
    pub a_log: Span,
    /// Skip connection `[d_inner]`.
    pub d: Span,
    /// `[d_inner, d_model]`.
    pub out_proj: Span,
    /// `[d_model]`.
    pub out_proj_bias: Option<Span>,
}

/// The one list of a model's parameters. It gives the offsets of every arena, the checkpoint names, the decay
/// groups and the initial values.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamTable {
    params: Vec<Param>,
    by_name: HashMap<String, usize>,
    arena_len: usize,
    /// `[input_dim, d_model]` and `[d_model]`.
    pub input_proj: Option<(Span, Span)>,
    /// `[rows, d_model]`.
    pub embedding: Option<Span>,
    /// The blocks, first to last.
    pub layers: Vec<LayerParams>,
    /// Final RMSNorm scale `[d_model]`.
    pub norm_f: Span,
    /// `[rows, d_model]`, absent where the head is tied to the embedding.
    pub lm_head: Option<Span>,
}

impl ParamTable {
    /// The table of a model.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a config out of range, [`ModelError::TooLarge`] for more than 2^40 elements.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        config.validate()?;
        let c = &config.backbone;
        let mut b = Builder::default();
        let dm = c.d_model;
        let input_proj = match c.input_dim {
            Some(dim) => {
                let w = b.bulk("input_proj.weight", &[dim, dm], fan_in(dim))?;
                Some((w, b.keep("input_proj.bias", &[dm], true, fan_in(dim))?))
            }
            None => None,
        };
        let embedding = match &config.lm {
            Some(lm) => Some(b.bulk("embedding", &[lm.rows(), dm], Init::Normal { std: 0.02 })?),
            None => None,
        };
        let layers = (0..c.n_layers).map(|i| b.layer(config, i)).collect::<Result<Vec<_>>>()?;
        let norm_f = b.keep("norm_f", &[dm], false, Init::Ones)?;
        let lm_head = match &config.lm {
            Some(lm) if !lm.tied => Some(b.bulk("lm_head", &[lm.rows(), dm], fan_in(dm))?),
            _ => None,
        };
        let by_name = b.params.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        Ok(Self {
            by_name,
            arena_len: b.end,
            params: b.params,
            input_proj,
            embedding,
            layers,
            norm_f,
            lm_head,
        })
    }

    /// Elements of an arena, alignment gaps included.
    pub fn arena_len(&self) -> usize {
        self.arena_len
    }

    /// Number of trainable values, gaps left out.
    pub fn param_count(&self) -> usize {
        self.params.iter().map(|p| p.span.len).sum()
    }

    /// All tensors in arena order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Param> {
        self.params.iter()
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`].
    pub fn get(&self, name: &str) -> Result<&Param> {
        let found = self.by_name.get(name).and_then(|&i| self.params.get(i));
        found.ok_or_else(|| ModelError::UnknownTensor { name: name.to_owned() })
    }
}

fn fan_in(n: usize) -> Init {
    Init::Uniform { bound: 1.0 / libm::sqrt(n as f64) }
}

#[derive(Default)]
struct Builder {
    params: Vec<Param>,
    end: usize,
}

impl Builder {
    fn push(
        &mut self,
        name: String,
        shape: &[usize],
        storage: Storage,
        decay: bool,
        init: Init,
    ) -> Result<Span> {
        let too_large = || ModelError::TooLarge { tensor: name.clone(), limit: MAX_ARENA };
        let len = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
        let end = self.end.checked_add(len).filter(|&e| e <= MAX_ARENA).ok_or_else(too_large)?;
        let span = Span { offset: self.end, len };
        self.end = end.next_multiple_of(ALIGN);
        self.params.push(Param { name, shape: shape.to_vec(), span, storage, decay, init });
        Ok(span)
    }

    fn bulk(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> Result<Span> {
        self.push(name.into(), shape, Storage::Bulk, true, init)
    }

    fn keep(&mut self, name: impl Into<String>, shape: &[usize], decay: bool, init: Init) -> Result<Span> {
        self.push(name.into(), shape, Storage::Keep, decay, init)
    }

    fn layer(&mut self, config: &ModelConfig, i: usize) -> Result<LayerParams> {
        let c = &config.backbone;
        let (dm, di, ds, dc, dr) = (c.d_model, c.d_inner(), c.d_state, c.d_conv, c.dt_rank());
        let n = |suffix: &str| format!("layers.{i}.{suffix}");
        let out_bound = 1.0 / libm::sqrt(di as f64 * c.n_layers as f64);
        let norm = self.keep(n("norm"), &[dm], false, Init::Ones)?;
        let in_proj = self.bulk(n("in_proj"), &[dm, 2 * di], fan_in(dm))?;
        let in_proj_bias = match c.proj_bias {
            true => Some(self.keep(n("in_proj.bias"), &[2 * di], true, Init::Zeros)?),
            false => None,
        };
        let conv_weight = self.keep(n("conv1d.weight"), &[di, dc], true, fan_in(dc))?;
        let conv_bias = match c.conv_bias {
            true => Some(self.keep(n("conv1d.bias"), &[di], true, fan_in(dc))?),
            false => None,
        };
        let x_proj = self.bulk(n("x_proj"), &[di, c.x_proj_cols()], fan_in(di))?;
        let dt_proj = self.bulk(n("dt_proj.weight"), &[dr, di], fan_in(dr))?;
        let dt_bias = self.keep(n("dt_proj.bias"), &[di], false, Init::DtBias)?;
        let a_log = self.keep(n("A_log"), &[di, ds], false, Init::ALog { d_state: ds })?;
        let d = self.keep(n("D"), &[di], false, Init::Ones)?;
        let out_proj = self.bulk(n("out_proj"), &[di, dm], Init::Uniform { bound: out_bound })?;
        let out_proj_bias = match c.proj_bias {
            true => Some(self.keep(n("out_proj.bias"), &[dm], true, Init::Zeros)?),
            false => None,
        };
        Ok(LayerParams {
            norm,
            in_proj,
            in_proj_bias,
            conv_weight,
            conv_bias,
            x_proj,
            dt_proj,
            dt_bias,
            a_log,
            d,
            out_proj,
            out_proj_bias,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LmHeadConfig, MambaConfig};

    #[test]
    fn order_offsets_and_count_of_mamba_130m() {
        let config = ModelConfig::language_model(MambaConfig::new(768, 24), LmHeadConfig::new(50_280));
        let table = ParamTable::new(&config).unwrap();
        assert_eq!(table.param_count(), 129_135_360);
        let mut end = 0;
        for p in table.iter() {
            assert!(p.span.offset >= end && p.span.offset % ALIGN == 0, "{}", p.name);
            assert_eq!(p.shape.iter().product::<usize>(), p.span.len);
            end = p.span.offset + p.span.len;
        }
        assert!(table.arena_len() >= end);
        assert_eq!(table.get("layers.23.A_log").unwrap().shape, [1536, 16]);
        assert!(table.get("layers.24.A_log").is_err());
    }

    #[test]
    fn optional_tensors_follow_the_config() {
        let mut backbone = MambaConfig::new(8, 1).with_input_dim(3);
        backbone.proj_bias = true;
        backbone.conv_bias = false;
        let names: Vec<_> = ParamTable::new(&ModelConfig::backbone(backbone))
            .unwrap()
            .iter()
            .map(|p| p.name.clone())
            .collect();
        assert!(
            names.contains(&"layers.0.in_proj.bias".into())
                && !names.contains(&"layers.0.conv1d.bias".into())
        );
        assert_eq!(names[..2], ["input_proj.weight".to_owned(), "input_proj.bias".to_owned()]);
    }

    #[test]
    fn absurd_sizes_are_refused_by_name() {
        let mut c = MambaConfig::new(1 << 20, 4096);
        c.expand = 64;
        assert!(matches!(ParamTable::new(&ModelConfig::backbone(c)), Err(ModelError::TooLarge { .. })));
        let c = MambaConfig { d_state: 257, ..MambaConfig::new(8, 1) };
        assert!(matches!(c.validate(), Err(ModelError::Config { field: "d_state", .. })));
    }
}
