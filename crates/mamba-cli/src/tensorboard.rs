//! TensorBoard event files: scalars as `Event` messages (protocol buffers) in TFRecord frames.
//!
//! A frame is the length (u64), its masked CRC-32C (u32), the message, and the message's masked CRC-32C (u32), all
//! little-endian. Fields of `Event`: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary, 7
//! session_log; of `Summary`: 1 value; of `Value`: 1 tag (string), 2 simple_value (float); of `SessionLog`: 1 status.

use crate::error::{Result, io};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes scalars to a new event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    out: BufWriter<File>,
}

impl EventWriter {
    /// A new event file in a folder. `step` is where this part of the run starts: TensorBoard drops what older files
    /// of the folder hold from there on.
    pub fn create(folder: &Path, step: u64) -> Result<Self> {
        let now = wall_time();
        let path = free_path(folder, now as u64);
        let file = File::create_new(&path).map_err(io(&path, "create"))?;
        let mut writer = Self { path, out: BufWriter::new(file) };
        writer.write(&version_event(now))?;
        if step > 0 {
            writer.write(&start_event(now, step))?;
        }
        Ok(writer)
    }

    /// One scalar under a tag.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f64) -> Result<()> {
        self.write(&scalar_event(wall_time(), step, tag, value as f32))
    }

    /// Hands everything to the operating system.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(io(&self.path, "write"))
    }

    fn write(&mut self, message: &[u8]) -> Result<()> {
        self.out.write_all(&frame(message)).map_err(io(&self.path, "write"))
    }
}

/// TensorBoard reads the files of a folder in the order of their names.
fn free_path(folder: &Path, mut seconds: u64) -> PathBuf {
    loop {
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.mamba"));
        if !path.exists() {
            return path;
        }
        seconds += 1;
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn version_event(time: f64) -> Vec<u8> {
    let mut event = event(time, 0);
    bytes_field(&mut event, 3, b"brain.Event:2");
    event
}

fn start_event(time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut log = Vec::new();
    varint_field(&mut log, 1, START);
    let mut event = event(time, step);
    bytes_field(&mut event, 7, &log);
    event
}

fn scalar_event(time: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut scalar = Vec::new();
    bytes_field(&mut scalar, 1, tag.as_bytes());
    scalar.push(2 << 3 | 5);
    scalar.extend(value.to_le_bytes());
    let mut summary = Vec::new();
    bytes_field(&mut summary, 1, &scalar);
    let mut event = event(time, step);
    bytes_field(&mut event, 5, &summary);
    event
}

/// Time and step of an event; a step of 0 is the default and left out.
fn event(time: f64, step: u64) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(time.to_le_bytes());
    if step > 0 {
        varint_field(&mut event, 2, step);
    }
    event
}

fn varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(message.len() + 16);
    out.extend(length);
    out.extend(masked(crc32c(&length)).to_le_bytes());
    out.extend(message);
    out.extend(masked(crc32c(message)).to_le_bytes());
    out
}

/// TFRecord's mask: checksums of data that holds checksums would be weak.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), reflected polynomial 0x82f63b78.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc_table();
    !bytes.iter().fold(!0, |crc: u32, &b| TABLE[usize::from(crc as u8 ^ b)] ^ (crc >> 8))
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_standard_check_string() {
        // RFC 3720, B.4, and the catalogue's check value.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn files_begin_as_tensorboard_writes_them() {
        let frame = frame(&version_event(1.5));
        // Length 24 and its masked checksum stand at the begin of every event file.
        assert_eq!(frame[..12], *b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22");
        assert_eq!(frame[12..21], *b"\x09\0\0\0\0\0\0\xf8\x3f");
        assert_eq!(frame[21..36], *b"\x1a\x0dbrain.Event:2");
        assert_eq!(frame.len(), 12 + 24 + 4);
    }

    #[test]
    fn a_scalar_has_its_protobuf_bytes() {
        let event = scalar_event(0.0, 300, "loss", 0.5);
        let mut want = b"\x09\0\0\0\0\0\0\0\0\x10\xac\x02".to_vec();
        want.extend(b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f");
        assert_eq!(event, want);
        assert_eq!(start_event(0.0, 1)[9..], *b"\x10\x01\x3a\x02\x08\x01");
    }

    #[test]
    fn a_second_file_of_the_same_second_gets_a_later_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = EventWriter::create(folder.path(), 0).unwrap();
        first.scalar("a", 1, 2.0).unwrap();
        first.flush().unwrap();
        let second = EventWriter::create(folder.path(), 7).unwrap();
        assert!(second.path > first.path);
    }
}
