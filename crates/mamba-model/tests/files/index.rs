use crate::support::{Tensor, model, refused, tensors, write_tensors};
use mamba_model::files::{Dtype, export_hf, load_pretrained};
use std::fs;
use std::path::{Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";

/// A folder in two shards, and its tensors.
fn sharded(folder: &Path) -> (PathBuf, Vec<Tensor>, usize) {
    export_hf(&model(false), folder, Dtype::F32).unwrap();
    let file = folder.join("model.safetensors");
    let all = tensors(&file);
    fs::remove_file(file).unwrap();
    let half = all.len() / 2;
    write_tensors(&folder.join("1.safetensors"), &all[..half]);
    write_tensors(&folder.join("2.safetensors"), &all[half..]);
    (folder.join(INDEX), all, half)
}

fn map(all: &[Tensor], half: usize) -> Vec<(String, String)> {
    let shard = |i: usize| if i < half { "1.safetensors" } else { "2.safetensors" };
    all.iter().enumerate().map(|(i, t)| (t.0.clone(), shard(i).to_owned())).collect()
}

fn write(index: &Path, map: &[(String, String)]) {
    let rows: Vec<String> = map.iter().map(|(tensor, file)| format!("{tensor:?}: {file:?}")).collect();
    let text = format!("{{\"metadata\": {{\"total_size\": 1}}, \"weight_map\": {{{}}}}}", rows.join(", "));
    fs::write(index, text).unwrap();
}

#[test]
fn shards_make_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let (index, all, half) = sharded(folder.path());
    write(&index, &map(&all, half));
    assert_eq!(load_pretrained(folder.path()).unwrap(), model(false));
    assert_eq!(load_pretrained(&index).unwrap(), model(false));
}

#[test]
fn shards_lie_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (index, all, half) = sharded(folder.path());
    let good = map(&all, half);
    let outside = [
        "../2.safetensors",
        "/etc/passwd",
        "sub/2.safetensors",
        "..",
        ".",
        "",
        "./1.safetensors",
        "a\\..\\b",
    ];
    for name in outside {
        let mut bad = good.clone();
        bad[0].1 = name.to_owned();
        write(&index, &bad);
        refused(name, folder.path(), "weight_map", "must lie in the same folder");
    }
    let missing = |name: &str| {
        let mut bad = good.clone();
        bad[0].1 = name.to_owned();
        write(&index, &bad);
        let error = load_pretrained(folder.path()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("cannot open"), "{error}");
    };
    missing("3.safetensors");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("loop.safetensors", folder.path().join("loop.safetensors")).unwrap();
        missing("loop.safetensors");
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.safetensors")).unwrap();
        let mut bad = good.clone();
        bad[0].1 = "zero.safetensors".to_owned();
        write(&index, &bad);
        refused("a shard that is a device", folder.path(), "file", "no regular file");
    }
    let mut bad = good.clone();
    bad[0].1 = INDEX.to_owned();
    write(&index, &bad);
    refused("an index that is its own shard", folder.path(), "header length", "no safetensors file");
}

#[test]
fn the_index_and_the_shards_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (index, all, half) = sharded(folder.path());
    let good = map(&all, half);
    let first = good[0].0.as_str();
    let mut bad = good.clone();
    bad[0].1 = "2.safetensors".to_owned();
    write(&index, &bad);
    refused("a tensor in the other shard", folder.path(), first, "is said to stand in `2.safetensors`");
    write(&index, &good[1..]);
    refused("a tensor that the index leaves out", folder.path(), first, "not in the index");
    bad = good.clone();
    bad.push(("surplus".to_owned(), "1.safetensors".to_owned()));
    write(&index, &bad);
    refused("a tensor that no shard has", folder.path(), "surplus", "does not have it");
    bad = good.clone();
    bad.push(good[0].clone());
    write(&index, &bad);
    refused("a tensor listed twice", folder.path(), first, "stands twice in the weight_map");
    write(&index, &good);
    write_tensors(&folder.path().join("2.safetensors"), &[&all[half..], &all[..1]].concat());
    refused("a tensor in two shards", folder.path(), first, "stands in two files");

    for (text, field, problem) in [
        ("", "index", "no JSON object"),
        ("[1]", "index", "no JSON object"),
        ("{}", "weight_map", "is absent"),
        ("{\"weight_map\": [1]}", "weight_map", "no JSON object"),
        ("{\"weight_map\": {\"a\": 1}}", "weight_map.a", "must be a text"),
        ("{\"weight_map\": {}}", "backbone.embeddings.weight", "is absent"),
        ("{\"weight_map\": {}, \"weight_map\": {}}", "weight_map", "stands twice in the index"),
    ] {
        fs::write(&index, text).unwrap();
        refused(text, folder.path(), field, problem);
    }
    let long = format!("{{\"weight_map\": \"{}\"}}", "x".repeat(16 << 20));
    fs::write(&index, long).unwrap();
    refused("a long index", folder.path(), "length", "above 16777216 bytes");
}
