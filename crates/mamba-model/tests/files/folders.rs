use crate::support::{edit, model, refused, tensors, write_tensors};
use mamba_model::files::{Dtype, export_hf, export_state_spaces, load_hf, load_pretrained};
use std::fs;
use std::path::Path;

fn configs(folder: &Path, cases: &[(&str, &str, &str, &str)]) {
    let config = folder.join("config.json");
    for (from, to, field, problem) in cases {
        let good = edit(&config, from, to);
        refused(&format!("{from} → {to:.60}"), folder, field, problem);
        fs::write(&config, good).unwrap();
    }
    load_pretrained(folder).unwrap();
}

#[test]
fn hugging_face_configs() {
    let folder = tempfile::tempdir().unwrap();
    export_hf(&model(false), folder.path(), Dtype::F32).unwrap();
    let deep = format!("\"expand\": {}2", "[".repeat(10_000));
    let nested = format!("\"expand\": {}{}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("\"expand\": 2, \"id2label\": \"{}\"", "x".repeat(1 << 20));
    configs(
        folder.path(),
        &[
            ("\"mamba\"", "\"llama\"", "model_type", "is \"llama\"; only \"mamba\""),
            ("\"mamba\"", "\"falcon_mamba\"", "model_type", "only \"mamba\""),
            ("\"mamba\"", "7", "model_type", "is 7"),
            ("\"silu\"", "\"gelu\"", "hidden_act", "is \"gelu\"; only \"silu\""),
            ("\"hidden_size\": 6", "\"hidden_size\": -6", "hidden_size", "is -6, a count is wanted"),
            ("\"hidden_size\": 6", "\"hidden_size\": 6.0", "hidden_size", "is 6.0"),
            ("\"hidden_size\": 6", "\"hidden_size\": \"6\"", "hidden_size", "a count is wanted"),
            ("\"hidden_size\": 6,", "", "hidden_size", "is absent"),
            ("\"hidden_size\": 6", "\"hidden_size\": 0", "hidden_size", "is 0; it must be 1 to"),
            ("\"hidden_size\": 6", "\"hidden_size\": 99999999999999999999", "hidden_size", "a count"),
            ("\"hidden_size\": 6", "\"hidden_size\": 1e400", "hidden_size", "cannot be read"),
            ("\"hidden_size\": 6", "\"hidden_size\": 6, \"hidden_size\": 6", "hidden_size", "stands twice"),
            ("\"hidden_size\": 6", "\"hidden_size\": 6, \"d_model\": 7", "d_model", "is 7, hidden_size is 6"),
            (
                "\"num_hidden_layers\": 2",
                "\"num_hidden_layers\": 1000000000",
                "num_hidden_layers",
                "1 to 4,096",
            ),
            ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2, \"n_layer\": 3", "n_layer", "is 3"),
            ("\"state_size\": 16", "\"state_size\": 257", "state_size", "1 to 256"),
            ("\"state_size\": 16", "\"state_size\": 15", "backbone.layers.0.mixer.x_proj.weight", "[31, 12]"),
            ("\"conv_kernel\": 4", "\"conv_kernel\": 33", "conv_kernel", "1 to 32"),
            ("\"expand\": 2", "\"expand\": 2, \"use_rope\": true", "use_rope", "may change the model"),
            (
                "\"expand\": 2",
                "\"expand\": 2, \"quantization_config\": {}",
                "quantization_config",
                "not known",
            ),
            ("\"expand\": 2", "\"expand\": 2, \"rms_norm\": false", "rms_norm", "is false; only true"),
            ("\"expand\": 2", &deep, "config", "no JSON object"),
            ("\"expand\": 2", &nested, "expand", "cannot be read: recursion limit"),
            ("\"expand\": 2", &long, "length", "above 1048576 bytes"),
            ("\"intermediate_size\": 12", "\"intermediate_size\": 13", "intermediate_size", "is 13, expand"),
            ("\"intermediate_size\": 12", "\"intermediate_size\": \"12\"", "intermediate_size", "a count"),
            ("\"time_step_rank\": 1", "\"time_step_rank\": \"many\"", "time_step_rank", "is \"many\""),
            ("\"time_step_rank\": 1", "\"time_step_rank\": 0", "time_step_rank", "is 0"),
            (
                "\"time_step_rank\": 1",
                "\"time_step_rank\": 2",
                "backbone.layers.0.mixer.x_proj.weight",
                "shape",
            ),
            (
                "\"layer_norm_epsilon\": 0.00001",
                "\"layer_norm_epsilon\": -1",
                "layer_norm_epsilon",
                "above 0",
            ),
            (
                "\"layer_norm_epsilon\": 0.00001",
                "\"layer_norm_epsilon\": \"1\"",
                "layer_norm_epsilon",
                "a number",
            ),
            ("\"vocab_size\": 11", "\"vocab_size\": 12", "backbone.embeddings.weight", "[12, 6]"),
            ("\"vocab_size\": 11", "\"vocab_size\": 1099511627776", "vocab_size", "1 to 16,777,216"),
            ("\"use_bias\": false", "\"use_bias\": 3", "use_bias", "true or false"),
            (
                "\"use_bias\": false",
                "\"use_bias\": true",
                "backbone.layers.0.mixer.in_proj.bias",
                "is absent",
            ),
            (
                "\"use_conv_bias\": true",
                "\"use_conv_bias\": false",
                "backbone.layers.0.mixer.conv1d.bias",
                "no tensor",
            ),
            ("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "lm_head.weight", "differs"),
            ("{", "", "config", "no JSON object"),
            ("{", "[{", "config", "no JSON object"),
        ],
    );
    let config = folder.path().join("config.json");
    fs::write(&config, b"{\"model_type\": \"mamba\xff\"}").unwrap();
    refused("a config that is not UTF-8", folder.path(), "text", "not UTF-8");
    fs::write(&config, "{}").unwrap();
    refused("an empty config", folder.path(), "model_type", "style is not known");
    fs::write(&config, "").unwrap();
    refused("no config", folder.path(), "config", "no JSON object");
}

#[test]
fn state_spaces_configs() {
    let folder = tempfile::tempdir().unwrap();
    export_state_spaces(&model(true), folder.path(), Dtype::F32).unwrap();
    configs(
        folder.path(),
        &[
            ("\"d_state\": 16", "\"d_state\": 15", "backbone.layers.0.mixer.x_proj.weight", "[31, 12]"),
            ("\"d_state\": 16", "\"d_state\": 0", "ssm_cfg.d_state", "is 0; it must be 1 to 256"),
            ("\"d_state\": 16", "\"d_state\": 16, \"ngroups\": 1", "ssm_cfg.ngroups", "not known"),
            ("\"d_state\": 16", "\"d_state\": 16, \"d_state\": 16", "d_state", "stands twice in the ssm_cfg"),
            ("\"d_state\": 16", "\"d_state\": \"auto\"", "ssm_cfg.d_state", "a count is wanted"),
            ("\"bias\": false", "\"layer\": \"Mamba2\", \"bias\": false", "ssm_cfg.layer", "only \"Mamba1\""),
            ("\"bias\": false", "\"bias\": true", "backbone.layers.0.mixer.in_proj.bias", "is absent"),
            ("\"dt_rank\": 1", "\"dt_rank\": -1", "ssm_cfg.dt_rank", "is -1"),
            ("\"ssm_cfg\": {", "\"ssm_cfg\": [], \"x\": {", "ssm_cfg", "no JSON object"),
            ("\"d_intermediate\": 0", "\"d_intermediate\": 64", "d_intermediate", "is 64"),
            ("\"attn_layer_idx\": []", "\"attn_layer_idx\": [1]", "attn_layer_idx", "attention layers"),
            ("\"attn_cfg\": {}", "\"attn_cfg\": {\"causal\": true}", "attn_cfg", "attention layers"),
            ("\"rms_norm\": true", "\"rms_norm\": false", "rms_norm", "only true"),
            ("\"n_layer\": 2", "\"n_layer\": 0", "n_layer", "1 to 4,096"),
            ("\"n_layer\": 2", "\"n_layer\": 3", "backbone.layers.2.norm.weight", "is absent"),
            ("\"n_layer\": 2", "\"n_layer\": 1", "backbone.layers.1.mixer.A_log", "no tensor"),
            ("\"vocab_size\": 11", "\"vocab_size\": null", "vocab_size", "is absent"),
            (
                "\"pad_vocab_size_multiple\": 1",
                "\"pad_vocab_size_multiple\": 8",
                "backbone.embedding.weight",
                "[16, 6]",
            ),
            (
                "\"pad_vocab_size_multiple\": 1",
                "\"pad_vocab_size_multiple\": 0",
                "pad_vocab_size_multiple",
                "is 0",
            ),
            ("\"tie_embeddings\": true", "\"tie_embeddings\": null, \"norm\": 1", "norm", "not known"),
        ],
    );
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    refused("no weights", folder.path(), "model.safetensors", "pytorch_model.bin");
}

#[test]
fn tied_heads_must_agree() {
    let folder = tempfile::tempdir().unwrap();
    export_state_spaces(&model(true), folder.path(), Dtype::F32).unwrap();
    let file = folder.path().join("model.safetensors");
    let good = tensors(&file);
    let head = good.iter().position(|(name, ..)| name == "lm_head.weight").unwrap();
    let mut changed = good.clone();
    changed[head].3[0] ^= 1;
    write_tensors(&file, &changed);
    refused("another head", folder.path(), "lm_head.weight", "differs from the embedding");
    changed[head].3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write_tensors(&file, &changed);
    refused("a head with NaN", folder.path(), "lm_head.weight", "holds NaN at index 0");
    changed = good.clone();
    changed[head].2 = vec![66];
    write_tensors(&file, &changed);
    refused("a flat head", folder.path(), "lm_head.weight", "has shape [66]");
    changed = good;
    changed.remove(head);
    write_tensors(&file, &changed);
    assert_eq!(load_pretrained(folder.path()).unwrap(), model(true));
}

#[test]
fn a_model_without_a_head_needs_a_tied_one() {
    let folder = tempfile::tempdir().unwrap();
    export_hf(&model(true), folder.path(), Dtype::F32).unwrap();
    let file = folder.path().join("model.safetensors");
    let bare: Vec<_> = tensors(&file)
        .into_iter()
        .map(|(name, dtype, shape, data)| (name.replace("backbone.", ""), dtype, shape, data))
        .collect();
    write_tensors(&file, &bare);
    assert_eq!(load_hf(folder.path()).unwrap(), model(true));
    let config = folder.path().join("config.json");
    edit(&config, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    refused("an untied model without a head", folder.path(), "lm_head.weight", "is absent");
    fs::write(
        &config,
        "{\"model_type\": \"mamba\", \"hidden_size\": 6, \"num_hidden_layers\": 2, \"vocab_size\": 11}",
    )
    .unwrap();
    assert_eq!(load_pretrained(folder.path()).unwrap(), model(true), "the library's defaults");
    let mut mixed = bare;
    mixed[0].0.insert_str(0, "backbone.");
    write_tensors(&file, &mixed);
    refused("both namings", folder.path(), "backbone.layers.0.norm.weight", "is absent");
}
