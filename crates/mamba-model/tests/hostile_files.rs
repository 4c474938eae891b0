//! Files that are cut off, doctored or foreign: an error that names the field, never a panic, never a huge allocation.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::files::{
    Dtype, export_hf, export_state_spaces, load_pretrained, load_weights, save_weights,
};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use std::fs;
use std::path::Path;

fn model(tied: bool) -> MambaWeights {
    let lm = LmHeadConfig { vocab_size: 11, pad_vocab_size_multiple: 1, tied };
    MambaWeights::init(&ModelConfig::language_model(MambaConfig::new(6, 2), lm), 1).unwrap()
}

/// (header text, data) of a safetensors file.
fn split(bytes: &[u8]) -> (String, Vec<u8>) {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + n].to_vec()).unwrap(), bytes[8 + n..].to_vec())
}

fn join(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Loads and expects an error whose text holds `field`.
fn refused(what: &str, path: &Path, field: &str) {
    let error = match load_pretrained(path) {
        Ok(_) => panic!("{what} was accepted"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(field), "{what}: `{error}` does not name `{field}`");
}

#[test]
fn native_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    save_weights(&path, &model(true)).unwrap();
    assert_eq!(load_weights(&path).unwrap(), model(true));
    let good = fs::read(&path).unwrap();
    let (header, data) = split(&good);
    let mut cases: Vec<(String, Vec<u8>, &str)> = Vec::new();
    let boundaries =
        [0, 1, 7, 8, 9, 8 + header.len() / 2, 8 + header.len() - 1, 8 + header.len(), 9 + header.len()];
    for cut in boundaries.into_iter().chain([good.len() - 4, good.len() - 1]) {
        cases.push((format!("cut at {cut}"), good[..cut].to_vec(), ""));
    }
    for bomb in [u64::MAX, 1 << 63, 1 << 40, good.len() as u64, 65 << 20] {
        cases.push((
            format!("header length {bomb}"),
            [&bomb.to_le_bytes(), &good[8..]].concat(),
            "header length",
        ));
    }
    let mut edit = |what: &str, from: &str, to: &str, field: &'static str| {
        let changed = header.replacen(from, to, 1);
        assert_ne!(changed, header, "{what}: `{from}` is not in the header");
        cases.push((what.to_owned(), join(&changed, &data), field));
    };
    edit("wrong type", "\"F32\"", "\"F16\"", "offsets");
    edit("unknown type", "\"F32\"", "\"I64\"", "type I64");
    edit("nonsense type", "\"F32\"", "\"X\"", "type X");
    edit("type that is a number", "\"F32\"", "7", "header entry");
    edit("unknown tensor", "\"norm_f\"", "\"norm_g\"", "norm_");
    edit("renamed layer", "\"layers.1.D\"", "\"layers.9.D\"", "layers.");
    edit("negative offset", "\"data_offsets\":[", "\"data_offsets\":[-", "header entry");
    edit("huge offset", "\"data_offsets\":[", "\"data_offsets\":[99999999999", "offsets");
    edit("huge shape", "\"shape\":[", "\"shape\":[4294967296,4294967296,", "offsets");
    edit("overflowing shape", "\"shape\":[", "\"shape\":[18446744073709551615,", "offsets");
    edit("negative shape", "\"shape\":[", "\"shape\":[-", "header entry");
    edit("fractional shape", "\"shape\":[", "\"shape\":[0.5,", "header entry");
    edit("further key", "\"dtype\"", "\"extra\":1,\"dtype\"", "header entry");
    edit("no JSON", "{", "[", "header");
    edit("unknown format", "mamba-train", "other-tool!", "mamba-train");
    edit("newer version", "\\\"version\\\":1", "\\\"version\\\":2", "version");
    edit("metadata of numbers", "{\"__metadata__\":{", "{\"__metadata__\":{\"x\":1,", "__metadata__");
    edit("unknown config field", "\\\"d_model\\\"", "\\\"hidden\\\":1,\\\"d_model\\\"", "config");
    edit("absent config field", "\\\"d_conv\\\":4,", "", "config");
    edit("d_state of 0", "\\\"d_state\\\":16", "\\\"d_state\\\":0", "d_state");
    edit("d_state of 257", "\\\"d_state\\\":16", "\\\"d_state\\\":257", "d_state");
    edit("another d_model", "\\\"d_model\\\":6", "\\\"d_model\\\":7", "shape");
    edit("huge model", "\\\"d_model\\\":6", "\\\"d_model\\\":1048576", "layers.0.in_proj");
    edit("endless model", "\\\"d_model\\\":6", "\\\"d_model\\\":99999999999999999999", "config");
    edit("more layers", "\\\"n_layers\\\":2", "\\\"n_layers\\\":3", "layers.2");
    edit("fewer layers", "\\\"n_layers\\\":2", "\\\"n_layers\\\":1", "layers.1");
    edit("untied head", "\\\"tied\\\":true", "\\\"tied\\\":false", "lm_head");
    edit("eps of 0", "\\\"rms_norm_eps\\\":0.00001", "\\\"rms_norm_eps\\\":0.0", "rms_norm_eps");
    edit("deep nesting", "\"norm_f\":{", &format!("\"norm_f\":{}{{", "[".repeat(5000)), "header");
    let entry = header.find("\"norm_f\"").unwrap();
    let end = entry + header[entry..].find('}').unwrap() + 1;
    let twice = format!("{},{}", header.trim_end().strip_suffix('}').unwrap(), &header[entry..end]);
    cases.push(("duplicate tensor".to_owned(), join(&format!("{twice}}}"), &data), "norm_f"));
    let metadata = header.replacen("{\"__metadata__\"", "{\"__metadata__\":{},\"__metadata__\"", 1);
    cases.push(("duplicate metadata".to_owned(), join(&metadata, &data), "__metadata__"));
    cases.push(("more data than tensors".to_owned(), [good.as_slice(), &[0; 4]].concat(), "data"));
    for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut changed = data.clone();
        changed[..4].copy_from_slice(&bad.to_le_bytes());
        cases.push((format!("{name} in a weight"), join(&header, &changed), name));
    }
    assert!(cases.len() >= 50, "{}", cases.len());
    for (what, bytes, field) in cases {
        fs::write(&path, &bytes).unwrap();
        refused(&what, &path, field);
    }
}

#[test]
fn pretrained_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, ss) = (folder.path().join("hf"), folder.path().join("ss"));
    export_hf(&model(false), &hf, Dtype::F32).unwrap();
    export_state_spaces(&model(true), &ss, Dtype::F32).unwrap();
    assert_eq!(load_pretrained(&hf).unwrap(), model(false));
    assert_eq!(load_pretrained(&ss).unwrap(), model(true));
    let edits: [(&Path, &str, &str, &str); 17] = [
        (&hf, "\"mamba\"", "\"llama\"", "model_type"),
        (&hf, "\"silu\"", "\"gelu\"", "hidden_act"),
        (&hf, "\"hidden_size\": 6", "\"hidden_size\": -6", "hidden_size"),
        (&hf, "\"hidden_size\": 6,", "", "hidden_size"),
        (&hf, "\"intermediate_size\": 12", "\"intermediate_size\": 13", "intermediate_size"),
        (&hf, "\"expand\": 2", "\"expand\": 2, \"use_rope\": true", "use_rope"),
        (&hf, "\"time_step_rank\": 1", "\"time_step_rank\": \"many\"", "time_step_rank"),
        (&hf, "\"vocab_size\": 11", "\"vocab_size\": 12", "shape"),
        (&hf, "\"use_bias\": false", "\"use_bias\": 3", "use_bias"),
        (&hf, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "lm_head"),
        (&hf, "{", "", "config"),
        (&ss, "\"d_state\": 16", "\"d_state\": 15", "shape"),
        (&ss, "\"d_state\": 16", "\"d_state\": 16, \"ngroups\": 1", "ngroups"),
        (&ss, "\"bias\": false", "\"layer\": \"Mamba2\", \"bias\": false", "layer"),
        (&ss, "\"d_intermediate\": 0", "\"d_intermediate\": 64", "d_intermediate"),
        (&ss, "\"attn_layer_idx\": []", "\"attn_layer_idx\": [1]", "attn_layer_idx"),
        (&ss, "\"rms_norm\": true", "\"rms_norm\": false", "rms_norm"),
    ];
    for (path, from, to, field) in edits {
        let config = path.join("config.json");
        let good = fs::read_to_string(&config).unwrap();
        let changed = good.replacen(from, to, 1);
        assert_ne!(changed, good, "`{from}` is not in the config");
        fs::write(&config, changed).unwrap();
        refused(&format!("{from} → {to}"), path, field);
        fs::write(&config, good).unwrap();
    }
    let index = hf.join("model.safetensors.index.json");
    fs::rename(hf.join("model.safetensors"), hf.join("shard.safetensors")).unwrap();
    refused("no weights", &hf, "model.safetensors");
    for (map, field) in [
        ("{\"a\": \"../ss/model.safetensors\"}", "weight_map"),
        ("{\"a\": \"/etc/passwd\"}", "weight_map"),
        ("{\"a\": \"missing.safetensors\"}", "missing.safetensors"),
        ("[1]", "weight_map"),
    ] {
        fs::write(&index, format!("{{\"weight_map\": {map}}}")).unwrap();
        refused(map, &hf, field);
    }
    fs::write(&index, "{\"weight_map\": {\"a\": \"shard.safetensors\"}}").unwrap();
    refused("a tensor that is not where the index says", &hf, "`a`");
    refused("an empty folder", folder.path(), "config.json");
    refused("nothing", &folder.path().join("absent"), "absent");
}

/// A torch archive with this pickle and one storage of 8 bytes.
fn archive(pickle: &[u8], method: u16) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in [("m/data.pkl", pickle), ("m/data/0", &[0u8; 8])] {
        let sizes = [[0; 4], (data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        let common = [
            &[20, 0, 0, 0][..],
            &method.to_le_bytes(),
            &[0; 4],
            &sizes,
            &(name.len() as u16).to_le_bytes(),
            &[0; 2],
        ]
        .concat();
        directory.extend(
            [
                b"PK\x01\x02\x14\x00",
                common.as_slice(),
                &[0; 10],
                &(file.len() as u32).to_le_bytes(),
                name.as_bytes(),
            ]
            .concat(),
        );
        file.extend([b"PK\x03\x04", common.as_slice(), name.as_bytes(), data].concat());
    }
    let start = (file.len() as u32).to_le_bytes();
    let end = [
        b"PK\x05\x06\0\0\0\0\x02\0\x02\0",
        (directory.len() as u32).to_le_bytes().as_slice(),
        &start,
        &[0; 2],
    ]
    .concat();
    [file, directory, end].concat()
}

#[test]
fn torch_archives() {
    let folder = tempfile::tempdir().unwrap();
    export_state_spaces(&model(true), folder.path(), Dtype::F32).unwrap();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let path = folder.path().join("pytorch_model.bin");
    let tensor = |kind: &str, offset: u8, shape: u8, stride: u8| {
        let storage = format!("((X\x07\0\0\0storagectorch\n{kind}\nX\x01\0\0\00X\x03\0\0\0cpuK\x02tQ");
        let rest = [b'K', offset, b'K', shape, 0x85, b'K', stride, 0x85, 0x89, b'N', b't', b'R'];
        [b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n", storage.as_bytes(), &rest, b"s."]
            .concat()
    };
    let memo = [b"\x80\x02}".as_slice(), &b"r\xff\xff\xff\xff"[..], b"."].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a good tensor that is not the model's", archive(&tensor("FloatStorage", 0, 2, 1), 0), "is absent"),
        ("a tensor past its storage", archive(&tensor("FloatStorage", 1, 2, 1), 0), "w"),
        ("a strided tensor", archive(&tensor("FloatStorage", 0, 1, 2), 0), "absent"),
        ("a transposed tensor", archive(&tensor("FloatStorage", 0, 2, 2), 0), "strides"),
        ("integers", archive(&tensor("LongStorage", 0, 1, 1), 0), "LongStorage"),
        ("compressed entries", archive(&tensor("FloatStorage", 0, 2, 1), 8), "compressed"),
        ("os.system", archive(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.", 0), "os.system"),
        ("eval", archive(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", 0), "builtins.eval"),
        ("a memo far out, which costs nothing", archive(&memo, 0), "is absent"),
        ("a stack bomb", archive(&[b"\x80\x02".to_vec(), vec![b'N'; 5 << 20]].concat(), 0), "data.pkl"),
        ("no end", archive(b"\x80\x02}", 0), "cut off"),
        ("no dictionary", archive(b"\x80\x02N.", 0), "dictionary"),
        ("an empty stack", archive(b"\x80\x02R.", 0), "empty stack"),
        ("an unknown instruction", archive(b"\x80\x02\xff.", 0), "instruction"),
        ("an instance", archive(b"\x80\x02(icollections\nOrderedDict\n.", 0), "instruction"),
        ("no archive", b"hello".to_vec(), "archive"),
        ("an empty file", Vec::new(), "archive"),
    ];
    for (what, bytes, field) in &cases {
        fs::write(&path, bytes).unwrap();
        refused(what, folder.path(), field);
    }
    let good = archive(&tensor("FloatStorage", 0, 2, 1), 0);
    for cut in 0..good.len() {
        fs::write(&path, &good[..cut]).unwrap();
        refused(&format!("cut at {cut}"), folder.path(), "");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    /// Random damage never panics, and what still loads is finite.
    #[test]
    fn flipped_bytes(places in proptest::collection::vec((0usize..1 << 16, 0u8..=255), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        save_weights(&path, &model(true)).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        for (place, value) in places {
            let at = place % bytes.len();
            bytes[at] = value;
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(weights) = load_weights(&path) {
            weights.check_finite().unwrap();
        }
    }
}
