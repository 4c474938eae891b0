//! Capturing a stream's work once and replaying it.

use crate::driver::check;
use crate::error::Result;
use crate::gpu::Context;
use crate::stream::Stream;
use cudarc::driver::sys;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is capturing; allocations are refused then.
pub(crate) fn capturing() -> bool {
    CAPTURING.get()
}

/// A capture in progress. Dropping it unfinished ends the capture and forgets what was recorded.
pub struct Capture {
    stream: Stream,
    open: bool,
}

impl Capture {
    /// From here on, work enqueued to `stream` by this thread is recorded and not run. Other threads are not affected.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn begin(stream: &Stream) -> Result<Self> {
        stream.context().bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }, "cuStreamBeginCapture")?;
        CAPTURING.set(true);
        Ok(Self { stream: stream.clone(), open: true })
    }

    /// Ends the capture and makes it runnable.
    ///
    /// # Errors
    /// Those of the driver, also where something in the capture was not allowed.
    pub fn end(mut self) -> Result<Graph> {
        let raw = self.close()?;
        let context = self.stream.context().clone();
        let mut exec = std::ptr::null_mut();
        // SAFETY: `raw` is the graph just captured; `exec` is a valid place for the answer.
        let instantiated = unsafe {
            check(sys::cuGraphInstantiateWithFlags(&mut exec, raw, 0), "cuGraphInstantiateWithFlags")
        };
        // SAFETY: the executable graph does not need its template.
        context.park(unsafe { check(sys::cuGraphDestroy(raw), "cuGraphDestroy") });
        instantiated?;
        Ok(Graph { exec, stream: self.stream.clone(), context })
    }

    fn close(&mut self) -> Result<sys::CUgraph> {
        self.open = false;
        CAPTURING.set(false);
        let mut raw = std::ptr::null_mut();
        // SAFETY: a capture is open on this stream.
        check(unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut raw) }, "cuStreamEndCapture")?;
        Ok(raw)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if let Ok(raw) = self.close()
            && !raw.is_null()
        {
            // SAFETY: the graph was never instantiated and nobody else holds it.
            self.stream.context().park(unsafe { check(sys::cuGraphDestroy(raw), "cuGraphDestroy") });
        }
    }
}

/// A runnable capture. Whoever holds it must keep every buffer that the captured work touches, and drop the graph
/// first; dropping waits for the stream.
pub struct Graph {
    exec: sys::CUgraphExec,
    stream: Stream,
    context: Arc<Context>,
}

// SAFETY: an executable graph may be used from any thread, one at a time, which `&self` on a non-Sync type grants.
unsafe impl Send for Graph {}

impl Graph {
    /// Enqueues the captured work.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles are alive.
        check(unsafe { sys::cuGraphLaunch(self.exec, self.stream.raw()) }, "cuGraphLaunch")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.park(self.stream.synchronize());
        // SAFETY: the graph has finished, and nobody else holds it.
        self.context.park(unsafe { check(sys::cuGraphExecDestroy(self.exec), "cuGraphExecDestroy") });
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
