//! Training state: everything a run needs to continue bit for bit, in memory and as one file.
//!
//! Layout of the file, little-endian: magic (8 bytes), version (u32), header length (u32), header (bincode), then
//! the f32 blocks weights, m, v (each `ParamTable::arena_len`), conv, ssm, then the last norms (f64, oldest first), the
//! user section and the CRC-32 of all before it (u32). Every length follows from the header and must add up to the
//! file's length before anything is allocated.

use crate::contract::Core;
use crate::engine::{Arena, Wait};
use crate::error::{Result, TrainerError};
use crate::metrics::StepOpts;
use crate::session::{TrainSessionCfg, WeightDtype};
use crate::trainer::{ModelKind, Trainer};
use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ParamTable, RecurrentState};
use mamba_optim::{AdamWConfig, AdamWState, NormWindowConfig, ScalerState, SkipCounter};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

const MAGIC: [u8; 8] = *b"MAMBATRN";
const VERSION: u32 = 2;
/// Bytes before the header: magic, version, header length.
const PREFIX: u64 = 16;
/// Bytes of the checksum.
const CHECKSUM: u64 = 4;
/// Largest header; a real one has a few hundred bytes.
const HEADER_LIMIT: usize = 1 << 16;

type HeaderCoding = Configuration<LittleEndian, Fixint, Limit<HEADER_LIMIT>>;

fn header_coding() -> HeaderCoding {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<HEADER_LIMIT>()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    model: ModelConfig,
    session: TrainSessionCfg,
    dtype: WeightDtype,
    adamw: AdamWConfig,
    step_opts: StepOpts,
    reference_no_decay: bool,
    step: u64,
    scaler: Option<ScalerState>,
    skips: SkipCounter,
    norms: u64,
    user_len: u64,
}

/// Everything a run needs to continue bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingState {
    /// f32 weights, with the model's config.
    pub weights: MambaWeights,
    /// Sizes; the rates are those the run began with.
    pub session: TrainSessionCfg,
    /// Storage of the bulk weights.
    pub dtype: WeightDtype,
    /// Current learning rate, weight decay, betas and epsilon.
    pub adamw: AdamWConfig,
    /// Clip and skip of the fused step.
    pub step_opts: StepOpts,
    /// Whether the no-decay groups are on.
    pub reference_no_decay: bool,
    /// Moments and step count.
    pub optimizer: AdamWState,
    /// State carried to the next window.
    pub recurrence: RecurrentState,
    /// Loss scaler, `None` where the precision has none.
    pub scaler: Option<ScalerState>,
    /// Windows skipped so far.
    pub skips: SkipCounter,
    /// Norms of the last applied windows, oldest first.
    pub norms: Vec<f64>,
    /// The caller's own bytes, for instance data position and random generator.
    pub user: Vec<u8>,
}

impl TrainingState {
    /// Checks that every value is one a run can have: finite weights, moments and states of the right lengths.
    ///
    /// # Errors
    /// [`TrainerError::Model`], [`TrainerError::Optim`] or [`TrainerError::Setting`] naming the first field that is
    /// not.
    pub fn validate(&self) -> Result<()> {
        let model = self.weights.config();
        self.session.validate(model)?;
        self.step_opts.validate()?;
        self.weights.check_finite()?;
        self.optimizer.check(self.weights.table().arena_len())?;
        NormWindowConfig::default().check_norms(&self.norms)?;
        self.recurrence.check(&model.backbone, self.session.batch)?;
        Ok(())
    }

    /// Writes the file; it appears whole or not at all, and replaces an older one only when it is complete.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), and those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.validate()?;
        let header = bincode::serde::encode_to_vec(self.header(), header_coding())
            .map_err(|e| file_error(path, "header", e.to_string()))?;
        mamba_model::files::atomic_write(path, |file| {
            let mut out = Summed::new(BufWriter::new(file));
            self.write_to(&header, &mut out)?;
            let sum = out.crc.finalize();
            out.inner.write_all(&sum.to_le_bytes())?;
            out.inner.flush()
        })?;
        Ok(())
    }

    fn write_to(&self, header: &[u8], out: &mut impl Write) -> std::io::Result<()> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(header.len() as u32).to_le_bytes())?;
        out.write_all(header)?;
        for block in [
            self.weights.arena(),
            &self.optimizer.m,
            &self.optimizer.v,
            &self.recurrence.conv,
            &self.recurrence.ssm,
        ] {
            write_block(block, out)?;
        }
        for norm in &self.norms {
            out.write_all(&norm.to_le_bytes())?;
        }
        out.write_all(&self.user)
    }

    fn header(&self) -> Header {
        Header {
            model: self.weights.config().clone(),
            session: self.session,
            dtype: self.dtype,
            adamw: self.adamw,
            step_opts: self.step_opts,
            reference_no_decay: self.reference_no_decay,
            step: self.optimizer.step,
            scaler: self.scaler,
            skips: self.skips,
            norms: self.norms.len() as u64,
            user_len: self.user.len() as u64,
        }
    }

    /// Reads and checks a file. Memory is bounded by the length of the file.
    ///
    /// # Errors
    /// [`TrainerError::StateFile`] naming the field that is truncated, damaged or out of range;
    /// [`TrainerError::Io`].
    pub fn read(path: &Path) -> Result<Self> {
        let io = |action| move |source| TrainerError::Io { path: path.to_owned(), action, source };
        let file = File::open(path).map_err(io("open"))?;
        let len = file.metadata().map_err(io("stat"))?.len();
        let mut source = Source { path, input: Summed::new(BufReader::new(file)) };
        let (header, header_len) = source.header(len)?;
        let table = ParamTable::new(&header.model).map_err(|e| file_error(path, "model", e.to_string()))?;
        header.session.validate(&header.model).map_err(|e| file_error(path, "session", e.to_string()))?;
        let arena = table.arena_len();
        let (conv, ssm) = RecurrentState::lengths(&header.model.backbone, header.session.batch);
        let norm_count = norm_count(path, header.norms)?;
        let values = [arena, arena, arena, conv, ssm, 2 * norm_count];
        source.check_length(len, header_len, values, header.user_len)?;
        let weights = source.block("weights", arena)?;
        let optimizer =
            AdamWState { m: source.block("m", arena)?, v: source.block("v", arena)?, step: header.step };
        let recurrence = RecurrentState { conv: source.block("conv", conv)?, ssm: source.block("ssm", ssm)? };
        let norms = source.norms(norm_count)?;
        let user = source.bytes("user section", header.user_len as usize)?;
        source.check_sum()?;
        let state = Self {
            weights: MambaWeights::from_arena(&header.model, weights)?,
            session: header.session,
            dtype: header.dtype,
            adamw: header.adamw,
            step_opts: header.step_opts,
            reference_no_decay: header.reference_no_decay,
            optimizer,
            recurrence,
            scaler: header.scaler,
            skips: header.skips,
            norms,
            user,
        };
        state.validate().map_err(|e| file_error(path, "contents", e.to_string()))?;
        Ok(state)
    }
}

impl<K: ModelKind> Trainer<K> {
    /// Everything a run needs to continue bit for bit, with the caller's own bytes.
    ///
    /// # Errors
    /// [`TrainerError::WindowOpen`]: an open window is not part of the state. [`TrainerError::Model`] or
    /// [`TrainerError::Optim`] where the run holds NaN or Inf, which no file should replace a good one with.
    pub fn training_state(&mut self, user: &[u8]) -> Result<TrainingState> {
        self.core.training_state(user)
    }

    /// Takes over a state: weights, moments, step count, recurrence, scaler, last norms, rates and options. Cancels a pending
    /// forward, forgets the last outcome.
    ///
    /// # Errors
    /// [`TrainerError::UnderGraph`], [`TrainerError::WindowOpen`], [`TrainerError::StateMismatch`] naming the first
    /// field that belongs to another trainer; those of [`TrainingState::validate`].
    pub fn load_training_state(&mut self, state: &TrainingState) -> Result<()> {
        self.core.load_training_state(state)
    }

    /// Writes the training state to one file, atomically.
    ///
    /// # Errors
    /// As [`training_state`](Self::training_state) and [`TrainingState::write`].
    pub fn save_state(&mut self, path: impl AsRef<Path>, user: &[u8]) -> Result<()> {
        self.core.training_state(user)?.write(path.as_ref())
    }

    /// Takes over the state of a file and returns the caller's own bytes. Everything is checked before the trainer
    /// is touched.
    ///
    /// # Errors
    /// As [`TrainingState::read`] and [`load_training_state`](Self::load_training_state).
    pub fn load_state(&mut self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.core.refuse_graph("load_state")?;
        self.core.refuse_window("load_state")?;
        let state = TrainingState::read(path.as_ref())?;
        self.core.load_training_state(&state)?;
        Ok(state.user)
    }
}

impl Core {
    fn training_state(&mut self, user: &[u8]) -> Result<TrainingState> {
        self.refuse_window("training_state")?;
        let state = TrainingState {
            weights: self.snapshot_master()?,
            session: self.ctx.session,
            dtype: self.ctx.dtype,
            adamw: self.adamw,
            step_opts: self.step_opts,
            reference_no_decay: self.reference_no_decay,
            optimizer: self.optimizer_state()?,
            recurrence: self.engine.recurrence()?,
            scaler: self.engine.scaler()?,
            skips: self.engine.progress(Wait::Yes)?.skips,
            norms: self.engine.norms()?,
            user: user.to_vec(),
        };
        state.validate()?;
        Ok(state)
    }

    fn load_training_state(&mut self, state: &TrainingState) -> Result<()> {
        self.refuse_graph("load_training_state")?;
        self.refuse_window("load_training_state")?;
        state.validate()?;
        self.check_belongs(state)?;
        self.engine.check_scaler(state.scaler)?;
        let weights = self.without_gaps(state.weights.arena());
        self.engine.write(Arena::Master, &weights)?;
        self.write_optimizer_state(&state.optimizer)?;
        self.engine.set_recurrence(Some(&state.recurrence))?;
        self.engine.set_scaler(state.scaler)?;
        self.engine.set_skips(state.skips)?;
        self.engine.set_norms(&state.norms)?;
        self.engine.set_reference_no_decay(state.reference_no_decay)?;
        self.reference_no_decay = state.reference_no_decay;
        self.adamw = state.adamw;
        self.step_opts = state.step_opts;
        self.cancel_pending();
        Ok(())
    }

    fn check_belongs(&self, state: &TrainingState) -> Result<()> {
        let (here, there) = (&self.ctx, state);
        let sizes = [
            ("batch", there.session.batch, here.session.batch),
            ("seq_len", there.session.seq_len, here.session.seq_len),
            ("input_dim", there.session.input_dim, here.session.input_dim),
        ];
        let mismatch = model_difference(there.weights.config(), &here.model).or_else(|| {
            let size = sizes.into_iter().find(|(_, a, b)| a != b);
            size.map(|(field, a, b)| (field, a.to_string(), b.to_string()))
        });
        let mismatch = mismatch.or_else(|| {
            (there.dtype != here.dtype).then(|| ("dtype", there.dtype.to_string(), here.dtype.to_string()))
        });
        match mismatch {
            Some((field, found, expected)) => Err(TrainerError::StateMismatch { field, found, expected }),
            None => Ok(()),
        }
    }
}

/// The first field in which two models differ, and both values.
fn model_difference(a: &ModelConfig, b: &ModelConfig) -> Option<(&'static str, String, String)> {
    let fields = |c: &ModelConfig| {
        let ModelConfig { backbone, lm } = c;
        let MambaConfig {
            d_model,
            n_layers,
            d_state,
            d_conv,
            expand,
            dt_rank: _,
            conv_bias,
            proj_bias,
            rms_norm_eps,
            input_dim,
        } = backbone;
        let head = lm.as_ref().map(|LmHeadConfig { vocab_size, pad_vocab_size_multiple: _, tied }| {
            [vocab_size.to_string(), lm.as_ref().map_or(0, LmHeadConfig::rows).to_string(), tied.to_string()]
        });
        let [vocab_size, rows, tied] = head.unwrap_or_else(|| ["none", "none", "none"].map(str::to_owned));
        [
            ("d_model", d_model.to_string()),
            ("n_layers", n_layers.to_string()),
            ("d_state", d_state.to_string()),
            ("d_conv", d_conv.to_string()),
            ("expand", expand.to_string()),
            ("dt_rank", backbone.dt_rank().to_string()),
            ("conv_bias", conv_bias.to_string()),
            ("proj_bias", proj_bias.to_string()),
            ("rms_norm_eps", rms_norm_eps.to_string()),
            ("input_dim", input_dim.map_or("none".to_owned(), |d| d.to_string())),
            ("vocab_size", vocab_size),
            ("embedding rows", rows),
            ("tied", tied),
        ]
    };
    let pairs = fields(a).into_iter().zip(fields(b));
    pairs.into_iter().find(|(x, y)| x != y).map(|((name, x), (_, y))| (name, x, y))
}

fn file_error(path: &Path, field: &str, problem: impl Into<String>) -> TrainerError {
    TrainerError::StateFile { path: path.to_owned(), field: field.to_owned(), problem: problem.into() }
}

/// The number of norms in a file, where it is one that a trainer keeps.
fn norm_count(path: &Path, count: u64) -> Result<usize> {
    let most = NormWindowConfig::default().window;
    match usize::try_from(count) {
        Ok(count) if count <= most => Ok(count),
        _ => Err(file_error(path, "norms", format!("are {count}; a trainer keeps at most {most}"))),
    }
}

/// Passes bytes on and sums them up.
struct Summed<T> {
    inner: T,
    crc: crc32fast::Hasher,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        Self { inner, crc: crc32fast::Hasher::new() }
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.crc.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// f32 values that are converted at a time.
const CHUNK: usize = 1 << 14;

fn write_block(values: &[f32], out: &mut impl Write) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * CHUNK);
    for chunk in values.chunks(CHUNK) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|v| v.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// A state file being read.
struct Source<'a> {
    path: &'a Path,
    input: Summed<BufReader<File>>,
}

impl Source<'_> {
    fn fill(&mut self, field: &str, out: &mut [u8]) -> Result<()> {
        self.input.inner.read_exact(out).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => file_error(self.path, field, "is truncated"),
            _ => TrainerError::Io { path: self.path.to_owned(), action: "read", source: e },
        })?;
        self.input.crc.update(out);
        Ok(())
    }

    fn u32(&mut self, field: &str) -> Result<u32> {
        let mut bytes = [0; 4];
        self.fill(field, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn header(&mut self, file_len: u64) -> Result<(Header, u32)> {
        let mut magic = [0; 8];
        self.fill("magic", &mut magic)?;
        if magic != MAGIC {
            return Err(file_error(self.path, "magic", "is not that of a training state"));
        }
        let version = self.u32("version")?;
        if version != VERSION {
            let problem = format!("is {version}; this program reads version {VERSION}");
            return Err(file_error(self.path, "version", problem));
        }
        let len = self.u32("header length")?;
        if len as usize > HEADER_LIMIT || u64::from(len) > file_len {
            let problem = format!("is {len} bytes, more than the file or than {HEADER_LIMIT}");
            return Err(file_error(self.path, "header length", problem));
        }
        let bytes = self.bytes("header", len as usize)?;
        match bincode::serde::decode_from_slice::<Header, _>(&bytes, header_coding()) {
            Ok((header, read)) if read == bytes.len() => Ok((header, len)),
            Ok((_, read)) => {
                let problem = format!("has {} bytes too many", bytes.len() - read);
                Err(file_error(self.path, "header", problem))
            }
            Err(e) => Err(file_error(self.path, "header", format!("cannot be decoded: {e}"))),
        }
    }

    /// The file is exactly as long as its header says, so that nothing larger than it is allocated.
    /// `values`: numbers of 4 bytes in the blocks.
    fn check_length(&self, file_len: u64, header_len: u32, values: [usize; 6], user_len: u64) -> Result<()> {
        let values: u128 = values.iter().map(|&n| n as u128).sum();
        let header = u128::from(PREFIX) + u128::from(header_len);
        let expected = header + 4 * values + u128::from(user_len) + u128::from(CHECKSUM);
        match expected == u128::from(file_len) {
            true => Ok(()),
            false => {
                let problem = format!("is {file_len} bytes; its header asks for {expected}");
                Err(file_error(self.path, "file length", problem))
            }
        }
    }

    fn bytes(&mut self, field: &str, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    fn block(&mut self, field: &str, len: usize) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(len);
        let mut bytes = vec![0; 4 * CHUNK.min(len)];
        while values.len() < len {
            let bytes = &mut bytes[..4 * CHUNK.min(len - values.len())];
            self.fill(field, bytes)?;
            values.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
        Ok(values)
    }

    fn norms(&mut self, len: usize) -> Result<Vec<f64>> {
        let bytes = self.bytes("norms", 8 * len)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect())
    }

    /// The checksum covers every byte before it.
    fn check_sum(mut self) -> Result<()> {
        let computed = self.input.crc.clone().finalize();
        let stored = self.u32("checksum")?;
        match stored == computed {
            true => Ok(()),
            false => {
                let problem =
                    format!("is {stored:08x}, the contents give {computed:08x}: the file is damaged");
                Err(file_error(self.path, "checksum", problem))
            }
        }
    }
}
