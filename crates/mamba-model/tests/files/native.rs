use crate::support::{join, memory_is_bounded, model, refused, split};
use mamba_model::files::{load_pretrained, load_weights, save_weights};
use std::fs;
use std::path::{Path, PathBuf};

struct Good {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    header: String,
    data: Vec<u8>,
}

fn good() -> Good {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save_weights(&path, &model(true)).unwrap();
    let bytes = fs::read(&path).unwrap();
    let (header, data) = split(&bytes);
    Good { _folder: folder, path, bytes, header, data }
}

impl Good {
    fn refused(&self, what: &str, bytes: &[u8], field: &str, problem: &str) {
        fs::write(&self.path, bytes).unwrap();
        refused(what, &self.path, field, problem);
    }

    fn header(&self, from: &str, to: &str, field: &str, problem: &str) {
        let changed = self.header.replacen(from, to, 1);
        assert_ne!(changed, self.header, "`{from}` is not in the header");
        self.refused(&format!("{from} → {to:.60}"), &join(&changed, &self.data), field, problem);
    }
}

#[test]
fn cut_off_anywhere() {
    let g = good();
    let header_end = 8 + g.header.len();
    for cut in 0..8 {
        g.refused(&format!("cut at {cut}"), &g.bytes[..cut], "header length", "is cut off");
    }
    for cut in (8..header_end).step_by(7).chain([header_end - 1]) {
        g.refused(&format!("cut at {cut}"), &g.bytes[..cut], "header length", "cut off");
    }
    for cut in (header_end..g.bytes.len()).step_by(97).chain([g.bytes.len() - 1]) {
        fs::write(&g.path, &g.bytes[..cut]).unwrap();
        let error = load_weights(&g.path).unwrap_err().to_string();
        assert!(error.contains("cut off"), "cut at {cut}: {error}");
    }
    g.refused("more data than tensors", &[&g.bytes[..], &[0; 4]].concat(), "data", "the header speaks of");
}

#[test]
fn header_lengths() {
    let g = good();
    for bomb in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40, 65 << 20, g.bytes.len() as u64 - 7] {
        let bytes = [&bomb.to_le_bytes(), &g.bytes[8..]].concat();
        g.refused(&format!("length {bomb}"), &bytes, "header length", "the file has");
    }
    g.refused("length 0", &[&[0; 8], &g.bytes[8..]].concat(), "header", "no JSON object");
    // A sparse file: 64 GiB long, and nothing on the disk.
    fs::write(&g.path, (1u64 << 35).to_le_bytes()).unwrap();
    fs::File::options().write(true).open(&g.path).unwrap().set_len(1 << 36).unwrap();
    refused("a long header in a sparse file", &g.path, "header length", "at most 16777216");
}

#[test]
fn headers() {
    let g = good();
    g.header("{", "[", "header", "no JSON object");
    g.header("{", "{\"a\":", "header", "no JSON object");
    g.header("\"norm_f\":{", &format!("\"norm_f\":{}{{", "[".repeat(50_000)), "header", "no JSON object");
    let nested = format!("\"norm_f\":{}{},\"x\":{{", "[".repeat(50_000), "]".repeat(50_000));
    g.header("\"norm_f\":{", &nested, "norm_f", "bad header entry");
    let many: Vec<String> = (0..140_000).map(|i| format!("\"{i}\":0,")).collect();
    g.header("\"norm_f\"", &format!("{}\"norm_f\"", many.concat()), "header", "131072 keys");
    let long = format!("\"norm_f\":[{}0],\"x\":{{", "0,".repeat(4 << 20));
    g.header("\"norm_f\":{", &long, "norm_f", "bad header entry");
    let dims = format!("\"shape\":[{}", "1,".repeat(1 << 20));
    g.header("\"shape\":[", &dims, "embedding", "1048578 dimensions");
    let mut latin = g.bytes.clone();
    latin[12] = 0xff;
    g.refused("a header that is not UTF-8", &latin, "header", "not UTF-8");

    g.header("\"F32\"", "\"F16\"", "embedding", "do not fit shape [11, 6]");
    g.header("\"F32\"", "\"I64\"", "embedding", "has type I64");
    g.header("\"F32\"", "\"F64\"", "embedding", "has type F64");
    g.header("\"F32\"", "7", "embedding", "bad header entry");
    g.header("\"dtype\"", "\"extra\":1,\"dtype\"", "embedding", "unknown field `extra`");
    g.header(
        "\"dtype\":\"F32\",",
        "\"dtype\":\"F32\",\"dtype\":\"F32\",",
        "embedding",
        "duplicate field `dtype`",
    );
    g.header("\"dtype\":\"F32\",", "", "embedding", "missing field `dtype`");
    g.header("\"shape\":[", "\"shape\":[-", "embedding", "bad header entry");
    g.header("\"shape\":[", "\"shape\":[0.5,", "embedding", "bad header entry");
    g.header("\"shape\":[", "\"shape\":[4294967296,4294967296,", "embedding", "offsets overflow");
    g.header("\"shape\":[", "\"shape\":[18446744073709551615,", "embedding", "offsets overflow");
    g.header("\"shape\":[", "\"shape\":[99999999999999999999,", "embedding", "bad header entry");
    g.header(
        "\"shape\":[11,6]",
        "\"shape\":[6,11]",
        "embedding",
        "has shape [6, 11], the config asks for [11, 6]",
    );
    g.header("\"shape\":[11,6]", "\"shape\":[66]", "embedding", "has shape [66]");
    g.header("\"shape\":[11,6]", "\"shape\":[0]", "embedding", "do not fit");
}

#[test]
fn offsets_and_names() {
    let g = good();
    g.header("[0,264]", "[-0,264]", "embedding", "bad header entry");
    g.header("[0,264]", "[264,0]", "embedding", "has offsets 264..0");
    g.header("[0,264]", "[0,264,0]", "embedding", "bad header entry");
    g.header("[0,264]", "[99999999999,99999999999]", "embedding", "which do not fit");
    g.header("[0,264]", "[4,268]", "embedding", "starts at byte 4, the tensor before it ends at 0");
    let overlap = g.header.replacen("[1032,1080]", "[984,1032]", 1);
    g.refused("an overlap", &join(&overlap, &g.data), "layers.0.D", "starts at byte 984, the tensor before");
    let top = "[18446744073709551351,18446744073709551615]";
    g.header("[0,264]", top, "layers.0.A_log", "starts at byte 264, the tensor before it ends at 0");

    g.header("\"norm_f\"", "\"norm_g\"", "norm_f", "is absent");
    g.header("\"layers.1.D\"", "\"layers.9.D\"", "layers.1.D", "is absent");
    let row = "\"norm_f\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[7512,7536]}";
    let tail = &[0; 24][..];
    let with = |row: &str| [format!("{{{row},"), g.header[1..].to_owned()].concat();
    g.refused("a duplicate", &join(&with(row), &g.data), "norm_f", "stands twice");
    let extra = row.replace("norm_f", "surplus").replace("[7512,7536]", "[7536,7560]");
    let bytes = join(&with(&extra), &[&g.data, tail].concat());
    g.refused("a surplus tensor", &bytes, "surplus", "no tensor of this model");
    let foreign =
        row.replace("norm_f", "lm_head.weight").replace("[6]", "[11,6]").replace("7512,7536", "7536,7800");
    let bytes = join(&with(&foreign), &[&g.data[..], &g.data[..264]].concat());
    g.refused("a copy of the embedding", &bytes, "lm_head.weight", "no tensor of this model");
    g.refused("no tensors", &join(&g.header[..g.header.find(",\"emb").unwrap()], &[]), "header", "no JSON");
    g.refused("an empty header", &join("{}", &[]), "mamba-train", "is absent from the metadata");
}

#[test]
fn metadata() {
    let g = good();
    g.header("mamba-train", "other-tool!", "mamba-train", "is absent");
    g.header("{\"__metadata__\"", "{\"__metadata__\":{},\"__metadata__\"", "__metadata__", "stands twice");
    g.header("{\"__metadata__\":{", "{\"__metadata__\":{\"x\":1,", "__metadata__.x", "must be a text");
    g.header("{\"__metadata__\":{", "{\"__metadata__\":[],\"x\":{", "__metadata__", "no JSON object");
    g.header("{\"mamba-train\"", "{\"mamba-train\":\"\",\"mamba-train\"", "mamba-train", "stands twice");
    g.header("\\\"version\\\":1", "\\\"version\\\":2", "version", "is 2, this build reads version 1");
    g.header("\\\"version\\\":1", "\\\"version\\\":-1", "config", "cannot be read");
    g.header("\\\"version\\\":1", "\\\"version\\\":1,\\\"more\\\":0", "config", "unknown field `more`");
    g.header("\\\"d_model\\\"", "\\\"hidden\\\":1,\\\"d_model\\\"", "config", "unknown field `hidden`");
    g.header("\\\"d_conv\\\":4,", "", "config", "missing field `d_conv`");
    g.header("\\\"d_conv\\\":4", "\\\"d_conv\\\":4,\\\"d_conv\\\":4", "config", "duplicate field `d_conv`");
    g.header("\\\"d_conv\\\":4", "\\\"d_conv\\\":0", "d_conv", "is 0; it must be 1 to 32");
    g.header("\\\"d_state\\\":16", "\\\"d_state\\\":257", "d_state", "is 257");
    g.header("\\\"d_state\\\":16", "\\\"d_state\\\":-16", "config", "expected usize");
    g.header("\\\"d_state\\\":16", "\\\"d_state\\\":1e1", "config", "expected usize");
    g.header("\\\"rms_norm_eps\\\":0.00001", "\\\"rms_norm_eps\\\":0.0", "rms_norm_eps", "above 0");
    g.header("\\\"rms_norm_eps\\\":0.00001", "\\\"rms_norm_eps\\\":1e400", "config", "out of range");
    g.header("\\\"d_model\\\":6", "\\\"d_model\\\":99999999999999999999", "config", "expected usize");
    g.header("\\\"d_model\\\":6", "\\\"d_model\\\":1048577", "d_model", "1 to 1,048,576");
    g.header("\\\"d_model\\\":6", "\\\"d_model\\\":7", "embedding", "the config asks for [11, 7]");
    g.header("\\\"n_layers\\\":2", "\\\"n_layers\\\":3", "layers.2.norm", "is absent");
    g.header("\\\"n_layers\\\":2", "\\\"n_layers\\\":4096", "layers.2.norm", "is absent");
    g.header("\\\"n_layers\\\":2", "\\\"n_layers\\\":1", "layers.1.A_log", "no tensor of this model");
    g.header("\\\"tied\\\":true", "\\\"tied\\\":false", "lm_head", "is absent");
    g.header("\\\"input_dim\\\":null", "\\\"input_dim\\\":3", "input_dim", "absent in a language model");
    let deep = format!("\\\"d_model\\\":{}6", "[".repeat(10_000));
    g.header("\\\"d_model\\\":6", &deep, "config", "cannot be read");
    g.header("\\\"d_model\\\":6", "\\\"d_model\\\":1048576", "layers.0.in_proj", "pushes the model past");
}

#[test]
fn non_finite_weights() {
    let g = good();
    let last = g.data.len() - 4;
    for (at, field, index) in [(0, "embedding", 0), (8, "embedding", 2), (last, "norm_f", 5)] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut data = g.data.clone();
            data[at..at + 4].copy_from_slice(&bad.to_le_bytes());
            let problem = format!("holds {bad} at index {index}");
            g.refused("a weight", &join(&g.header, &data), field, &problem);
        }
    }
}

#[test]
fn what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    refused("an empty folder", folder.path(), "config.json", "is absent");
    for path in [&path, Path::new("")] {
        let error = load_pretrained(path).unwrap_err().to_string();
        assert!(error.contains("cannot open"), "{error}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("/dev/zero", &path).unwrap();
        refused("an endless device", &path, "file", "no regular file");
        symlink("/dev/zero", folder.path().join("config.json")).unwrap();
        refused("an endless config", folder.path(), "file", "no regular file");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        symlink(&a, &b).unwrap();
        symlink(&b, &a).unwrap();
        let error = load_pretrained(&a).unwrap_err().to_string();
        assert!(error.contains("cannot open"), "{error}");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        refused("a socket", &socket, "file", "no regular file");
    }
    memory_is_bounded("all");
}
