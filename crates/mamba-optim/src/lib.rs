//! AdamW, clipping, loss scaling and schedules over flat parameter arenas.
