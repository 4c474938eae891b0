//! Streams, events and the time between them.

use crate::driver::check;
use crate::error::Result;
use crate::gpu::Context;
use cudarc::driver::sys;
use std::sync::Arc;

/// Work in order. A clone is the same stream.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a CUDA stream may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: the driver synchronises calls on one stream.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the stream was created in `Stream::new` and nobody else holds it.
        let destroy = || unsafe { check(sys::cuStreamDestroy_v2(self.raw), "cuStreamDestroy") };
        self.context.park(self.context.bind().and_then(|()| destroy()));
    }
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` is a valid place for the answer; the context is current.
        check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "cuStreamCreate")?;
        Ok(Self { inner: Arc::new(Inner { raw, context: context.clone() }) })
    }

    /// The driver's handle, valid while this stream lives.
    pub fn raw(&self) -> sys::CUstream {
        self.inner.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Waits until everything enqueued is done.
    ///
    /// # Errors
    /// Those of the driver; errors of earlier kernels show here.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.context.bind()?;
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamSynchronize(self.inner.raw) }, "cuStreamSynchronize")
    }

    /// Makes later work of this stream wait for an event.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.inner.context.bind()?;
        // SAFETY: both handles are alive.
        check(unsafe { sys::cuStreamWaitEvent(self.inner.raw, event.raw, 0) }, "cuStreamWaitEvent")
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

/// A point in a stream.
pub struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: a CUDA event may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that also takes the time.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(stream: &Stream) -> Result<Self> {
        let context = stream.context().clone();
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place for the answer; the context is current.
        check(unsafe { sys::cuEventCreate(&mut raw, 0) }, "cuEventCreate")?;
        Ok(Self { raw, context })
    }

    /// Marks the end of what `stream` holds now.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles are alive.
        check(unsafe { sys::cuEventRecord(self.raw, stream.raw()) }, "cuEventRecord")
    }

    /// Waits until the marked work is done; at once where nothing was recorded.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        check(unsafe { sys::cuEventSynchronize(self.raw) }, "cuEventSynchronize")
    }

    /// Whether the marked work is done.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn is_done(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check(code, "cuEventQuery").map(|()| true),
        }
    }

    /// Microseconds from `start` to this event; both must be done.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn microseconds_since(&self, start: &Event) -> Result<f64> {
        self.context.bind()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive; the place for the answer is valid.
        check(
            unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, start.raw, self.raw) },
            "cuEventElapsedTime",
        )?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was created in `new` and nobody else holds it.
        let destroy = || unsafe { check(sys::cuEventDestroy_v2(self.raw), "cuEventDestroy") };
        self.context.park(self.context.bind().and_then(|()| destroy()));
    }
}

/// Median of the device time of `runs` calls of `work`, in microseconds, after `warmup` untimed ones. `before` runs
/// ahead of each timed call, outside the time (to flush a cache, say).
///
/// # Errors
/// Those of `before`, of `work` and of the driver.
pub fn median_time<E: From<crate::CudaError>>(
    stream: &Stream,
    warmup: usize,
    runs: usize,
    mut before: impl FnMut() -> std::result::Result<(), E>,
    mut work: impl FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<f64, E> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..warmup + runs.max(1) {
        let (start, end) = (Event::new(stream)?, Event::new(stream)?);
        before()?;
        start.record(stream)?;
        work()?;
        end.record(stream)?;
        end.synchronize()?;
        if run >= warmup {
            times.push(end.microseconds_since(&start)?);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
