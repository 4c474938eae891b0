//! The PTX of this build, and the kernels that a device has loaded of it.

use crate::error::{KernelError, Result};
use crate::kernel::Launch;
use crate::ptx_index::MODULES;
use mamba_cuda::{Event, Function, Gpu, Module};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One PTX file.
pub(crate) struct PtxModule {
    /// `80`: runs on 8.0 and newer; `90a`: runs on 9.0 only.
    pub target: &'static str,
    /// The text.
    pub ptx: &'static str,
    /// (demangled signature, symbol) of its kernels.
    pub entries: &'static [(&'static str, &'static str)],
}

impl PtxModule {
    /// The text with this one kernel: a driver that has not seen it before compiles all that it is given.
    fn only(&self, symbol: &str) -> String {
        let starts: Vec<usize> = self.ptx.match_indices(ENTRY).map(|(at, _)| at).collect();
        let ends = starts.iter().skip(1).copied().chain([self.ptx.len()]);
        let mut parts = starts.iter().zip(ends).map(|(&from, to)| &self.ptx[from..to]);
        let named = |part: &&str| part[ENTRY.len()..].split('(').next() == Some(symbol);
        let shared = &self.ptx[..starts.first().copied().unwrap_or(0)];
        parts.find(named).map_or_else(|| self.ptx.to_owned(), |part| [shared, part].concat())
    }

    fn runs_on(&self, capability: (i32, i32)) -> bool {
        match self.target {
            "90a" => capability == (9, 0),
            _ => capability.0 >= 8,
        }
    }
}

/// How a kernel begins.
const ENTRY: &str = ".visible .entry ";

/// (signature, symbol, target) of every kernel of this build.
pub fn entries() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    MODULES.iter().flat_map(|m| m.entries.iter().map(|&(signature, symbol)| (signature, symbol, m.target)))
}

/// The kernels of one device. Each is loaded when it is first asked for, once in a process.
#[derive(Clone)]
pub struct Kernels {
    gpu: Gpu,
    loaded: Arc<Mutex<Loaded>>,
    /// While kernels are only being looked up: those that were asked for. Of this handle and its clones alone.
    wanted: Arc<Mutex<Option<Vec<Wanted>>>>,
}

/// A kernel to be loaded.
struct Wanted {
    signature: String,
    parameter_bytes: Vec<usize>,
    max_shared: usize,
}

#[derive(Default)]
struct Loaded {
    functions: HashMap<String, Function>,
    /// Launches with the events around them, while they are timed.
    timed: Option<Vec<(String, Event, Event)>>,
}

/// Device time of one kind of launch: the same kernel on the same grid.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Instantiation and grid.
    pub name: String,
    /// Launches.
    pub count: usize,
    /// Their device time in all, in microseconds.
    pub microseconds: f64,
}

/// What this process has loaded, by device. Kept to its end: a second trainer starts without the driver's compiler.
static LOADED: Mutex<BTreeMap<usize, Arc<Mutex<Loaded>>>> = Mutex::new(BTreeMap::new());

impl Kernels {
    /// The kernels of `gpu`, launched on its compute stream.
    pub fn new(gpu: &Gpu) -> Self {
        let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = all.entry(gpu.info().ordinal).or_default().clone();
        Self { gpu: gpu.clone(), loaded, wanted: Arc::default() }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether this build has a kernel of this signature for the device.
    pub fn has(&self, signature: &str) -> bool {
        find(signature, self.gpu.info().capability).is_some()
    }

    /// Loads every kernel that `work` would launch: the driver compiles PTX that it has not seen before, which takes up to
    /// a third of a second a kernel. `work` launches nothing meanwhile; what else it enqueues runs.
    ///
    /// # Errors
    /// Those of `work`, [`KernelError::Missing`], those of the driver.
    pub fn prepare<E: From<KernelError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        *self.wanted() = Some(Vec::new());
        let done = work();
        let wanted = self.wanted().take().unwrap_or_default();
        done?;
        for want in &wanted {
            self.function(want)?;
        }
        Ok(())
    }

    fn wanted(&self) -> MutexGuard<'_, Option<Vec<Wanted>>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The one launch of this crate.
    #[allow(unsafe_code)]
    pub(crate) fn start<K: Launch>(&self, call: &K) -> Result<()> {
        let want = Wanted {
            signature: call.signature(),
            parameter_bytes: K::parameter_bytes(),
            max_shared: call.max_shared(),
        };
        if let Some(wanted) = &mut *self.wanted() {
            wanted.push(want);
            return Ok(());
        }
        let function = self.function(&want)?;
        let dims = call.dims();
        if dims.grid.contains(&0) {
            return Ok(());
        }
        let begin = self.mark()?;
        // SAFETY: the signature was compared with the kernel's, the parameter sizes at load, and `check` compared the
        // buffers' lengths with the problem; the views borrow the buffers, whose release waits for the device.
        unsafe { mamba_cuda::launch(&function, dims, &mut call.params(), self.gpu.compute())? };
        let (Some(begin), Some(end)) = (begin, self.mark()?) else { return Ok(()) };
        let name = want.signature.split('(').next().unwrap_or_default().trim_start_matches("void ");
        if let Some(timed) = &mut self.lock().timed {
            timed.push((format!("{name} {:?}", dims.grid), begin, end));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        // A panic while the lock was held leaves at worst a kernel less in the map.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event at this point of the stream, while launches are timed.
    fn mark(&self) -> Result<Option<Event>> {
        if self.lock().timed.is_none() {
            return Ok(None);
        }
        let event = Event::new(self.gpu.compute())?;
        event.record(self.gpu.compute())?;
        Ok(Some(event))
    }

    /// From here on every launch on this device, in the whole process, is timed. Not for captures.
    pub fn start_timing(&self) {
        self.lock().timed = Some(Vec::new());
    }

    /// Ends the timing, waits for the launches and sums them up, most time first.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn stop_timing(&self) -> Result<Vec<KernelTime>> {
        let timed = self.lock().timed.take().unwrap_or_default();
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for (name, begin, end) in timed {
            end.synchronize()?;
            let sum = sums.entry(name).or_default();
            *sum = (sum.0 + 1, sum.1 + end.microseconds_since(&begin)?);
        }
        let times =
            sums.into_iter().map(|(name, (count, microseconds))| KernelTime { name, count, microseconds });
        let mut times: Vec<KernelTime> = times.collect();
        times.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
        Ok(times)
    }

    fn function(&self, want: &Wanted) -> Result<Function> {
        let Wanted { signature, parameter_bytes, max_shared } = want;
        let mut loaded = self.lock();
        if let Some(function) = loaded.functions.get(signature) {
            return Ok(function.clone());
        }
        let capability = self.gpu.info().capability;
        let Some((index, symbol)) = find(signature, capability) else {
            let (major, minor) = capability;
            return Err(KernelError::Missing { signature: signature.clone(), major, minor });
        };
        let module = Module::load(&self.gpu, &MODULES[index].only(symbol))?;
        let function = module.function(symbol, parameter_bytes, *max_shared)?;
        loaded.functions.insert(signature.clone(), function.clone());
        Ok(function)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

/// The module and symbol of a signature; a module made for exactly this device comes first.
fn find(signature: &str, capability: (i32, i32)) -> Option<(usize, &'static str)> {
    let candidates = MODULES.iter().enumerate().filter(|(_, m)| m.runs_on(capability));
    let hits = candidates.filter_map(|(i, m)| {
        let entry = m.entries.iter().find(|(s, _)| *s == signature)?;
        Some((m.target == "90a", i, entry.1))
    });
    hits.max_by_key(|&(exact, i, _)| (exact, std::cmp::Reverse(i))).map(|(_, i, symbol)| (i, symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_can_be_taken_out_of_their_modules() {
        for module in MODULES {
            let (head, _) = module.ptx.split_once(ENTRY).unwrap();
            for &(_, symbol) in module.entries {
                let only = module.only(symbol);
                let last = only.lines().rfind(|l| !l.trim().is_empty() && !l.trim().starts_with("//"));
                assert!(only.starts_with(head) && last == Some("}"), "{symbol}");
                assert_eq!(only.matches(ENTRY).count(), 1, "{symbol}");
                assert!(only.contains(&format!("{ENTRY}{symbol}(")), "{symbol}");
                // What kernels share stands in front of the first.
                let shared = [".global", ".const", ".func", ".extern", ".shared"];
                let own = only[head.len()..].lines();
                assert_eq!(own.filter(|l| shared.iter().any(|s| l.starts_with(s))).count(), 0, "{symbol}");
            }
        }
    }

    #[test]
    fn the_index_is_that_of_the_ptx() {
        for module in MODULES {
            let symbols = module.ptx.lines().filter_map(|l| l.split(".entry ").nth(1));
            let found: Vec<&str> = symbols.map(|l| l.trim_end_matches('(').trim()).collect();
            let listed: Vec<&str> = module.entries.iter().map(|&(_, symbol)| symbol).collect();
            assert_eq!(found, listed, "run `cargo xtask ptx`");
            for &(signature, symbol) in module.entries {
                let demangled = cpp_demangle::Symbol::new(symbol).unwrap().demangle().unwrap();
                assert_eq!(demangled, signature);
            }
        }
    }
}
