//! Order, resume, parts and hostile files.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_data::{
    Corpus, CorpusOptions, DataPosition, IGNORE_INDEX, Part, Sampler, SamplerOptions, Shuffle, TokenFile,
    Tokenizer, Width, evenly_spread,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn corpus_of(text: &[u8], validation: f64) -> (tempfile::TempDir, Corpus) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    fs::write(&path, text).unwrap();
    let corpus = Corpus::open(&path, &CorpusOptions { validation, ..CorpusOptions::default() }).unwrap();
    (folder, corpus)
}

/// Letters without a period: the low bits of a multiplicative hash's square.
fn letters(n: usize) -> Vec<u8> {
    let hash = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..n as u64).map(|i| b'a' + (hash(hash(i) >> 29) >> 40) as u8 % 26).collect()
}

proptest! {
    #[test]
    fn a_shuffle_is_a_permutation(n in 1u64..3000, seed: u64, epoch in 0u64..5) {
        let order = Shuffle::new(n, seed, epoch);
        let mut seen: Vec<u64> = (0..n).map(|i| order.get(i)).collect();
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..n));
    }

    #[test]
    fn any_point_resumes(batch in 1usize..5, seq_len in 1usize..40, seed: u64, stop in 0usize..60, stateful: bool) {
        let (_folder, corpus) = corpus_of(&letters(900), 0.1);
        let options = SamplerOptions { batch, seq_len, seed, stateful };
        let mut straight = Sampler::new(&corpus, Part::Train, options).unwrap();
        (0..stop).for_each(|_| drop(straight.next_batch()));
        let text = serde_json::to_string(&straight.position()).unwrap();
        let mut resumed = Sampler::new(&corpus, Part::Train, options).unwrap();
        resumed.seek(serde_json::from_str(&text).unwrap()).unwrap();
        for _ in 0..20 {
            prop_assert_eq!(straight.next_batch(), resumed.next_batch());
        }
    }
}

#[test]
fn an_epoch_shows_each_window_once() {
    let (_folder, corpus) = corpus_of(&letters(5000), 0.0);
    let options = SamplerOptions { batch: 3, seq_len: 16, seed: 4, stateful: false };
    let mut sampler = Sampler::new(&corpus, Part::Train, options).unwrap();
    let mut seen = BTreeMap::new();
    let batches = sampler.batches_per_epoch();
    for _ in 0..batches {
        for row in sampler.next_batch().inputs.chunks(16) {
            *seen.entry(row.to_vec()).or_insert(0) += 1;
        }
    }
    assert_eq!(sampler.position(), DataPosition { epoch: 0, batch: batches });
    assert!(seen.values().all(|&count| count == 1));
    // 5000 tokens hold 312 windows, or 311 where the epoch starts late.
    assert!((103..=104).contains(&batches), "{batches}");
}

#[test]
fn targets_are_the_next_tokens_and_streams_go_on() {
    let text = letters(2000);
    let (_folder, corpus) = corpus_of(&text, 0.0);
    let options = SamplerOptions { batch: 2, seq_len: 10, seed: 4, stateful: true };
    let mut sampler = Sampler::new(&corpus, Part::Train, options).unwrap();
    let first = sampler.next_batch();
    assert_eq!(first.inputs[1..10], first.targets[..9].iter().map(|&t| t as u32).collect::<Vec<_>>());
    assert_eq!(first.reset.as_ref().unwrap()[0], 1);
    let second = sampler.next_batch();
    assert_eq!(second.inputs[0], first.targets[9] as u32);
    assert_eq!(second.inputs[10], first.targets[19] as u32);
    assert_eq!(second.reset, None);
    assert_eq!(first.inputs[..10], text[..10].iter().map(|&b| u32::from(b)).collect::<Vec<_>>());
}

#[test]
fn documents_reset_the_state() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("a.txt", "aaaa"), ("b.txt", "bbbb")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let corpus =
        Corpus::open(folder.path(), &CorpusOptions { validation: 0.0, ..CorpusOptions::default() }).unwrap();
    assert_eq!(corpus.read(0..10), b"aaaa\0bbbb\0".map(u32::from));
    let batch = evenly_spread(&corpus, Part::Train, 1, 9, 1).next().unwrap();
    assert_eq!(batch.reset.as_deref(), Some(&[0, 0, 0, 0, 0, 1, 0, 0, 0][..]));
    assert_eq!(batch.targets[3], 0);
}

#[test]
fn ignored_hidden_and_binary_files_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    write("b.txt", b"two");
    write("sub/a.txt", b"three");
    write("a.txt", b"one");
    write(".gitignore", b"secret.txt\n");
    write("secret.txt", b"secret");
    write(".hidden", b"hidden");
    write("binary", b"x\0y");
    write("latin1.txt", b"caf\xe9");
    write("empty.txt", b"");
    write(".ignore", b"dull.txt\n");
    write("dull.txt", b"dull");
    // Only what lies inside the folder decides.
    write(".git/info/exclude", b"a.txt\n");
    let corpus = Corpus::open(folder.path(), &CorpusOptions::default()).unwrap();
    let text: Vec<u8> = corpus.read(0..100).iter().map(|&t| t as u8).collect();
    assert_eq!(text, b"one\0two\0three\0");
    assert_eq!((corpus.files(), corpus.skipped().len()), (3, 3), "{:?}", corpus.skipped());
    write(".gitignore", b"b.txt\n");
    let inner = Corpus::open(&folder.path().join("sub"), &CorpusOptions::default()).unwrap();
    write(".gitignore", b"a.txt\n");
    let same = Corpus::open(&folder.path().join("sub"), &CorpusOptions::default()).unwrap();
    assert_eq!((inner.len(), same.len()), (6, 6));
}

#[test]
fn where_there_is_no_text_the_reason_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let error = |path: &Path| Corpus::open(path, &CorpusOptions::default()).unwrap_err().to_string();
    assert!(error(folder.path()).contains("no text in this folder; left out: no file;"));
    for (name, bytes) in [("a", &b""[..]), ("b", b""), ("c", b"\xff"), (".hidden", b"text")] {
        fs::write(path(name), bytes).unwrap();
    }
    let all = error(folder.path());
    assert!(all.contains("left out: 2 files (empty), 1 file (no UTF-8 text);"), "{all}");
    assert!(error(&path("a")).ends_with("a: the file is empty"));
    assert!(error(&path("c")).ends_with("c: the file is no UTF-8 text"));
}

#[test]
fn wide_ids_are_not_taken_for_narrow_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.bin");
    let wide: Vec<u8> = (0..100u32).flat_map(|i| (i * 7).to_le_bytes()).collect();
    fs::write(&path, &wide).unwrap();
    assert!(TokenFile::open(&path, Width::U16).unwrap_err().to_string().contains("32-bit"));
    assert_eq!(TokenFile::open(&path, Width::U32).unwrap().get(99), Some(693));
    // A file of zeros, and one id that breaks the pattern.
    fs::write(&path, [0u8; 400]).unwrap();
    assert!(TokenFile::open(&path, Width::U16).is_ok());
    fs::write(&path, [&wide[..], &[1, 0, 1, 0]].concat()).unwrap();
    assert!(TokenFile::open(&path, Width::U16).is_ok());
}

#[test]
fn entropy_of_a_fair_coin_is_one_bit() {
    let (_folder, corpus) = corpus_of(&b"ab".repeat(4000), 0.5);
    let bits = corpus.unigram_bits_per_byte(Part::Train).unwrap();
    assert!((bits - 1.0).abs() < 1e-6, "{bits}");
}

#[test]
fn evenly_spread_pads_the_last_batch() {
    let (_folder, corpus) = corpus_of(&letters(100), 0.0);
    let batches: Vec<_> = evenly_spread(&corpus, Part::Train, 4, 16, 99).collect();
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[1].targets[32..], [IGNORE_INDEX; 32]);
    assert_eq!(batches[1].inputs.len(), 64);
}

fn header(magic: u32, version: u32, tokens: u32) -> Vec<u8> {
    let mut bytes = [magic, version, tokens].map(u32::to_le_bytes).concat();
    bytes.resize(1024, 0);
    bytes
}

#[test]
fn token_files_of_both_projects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.bin");
    let open = |bytes: &[u8], width| {
        fs::write(&path, bytes).unwrap();
        TokenFile::open(&path, width)
    };
    let ids: Vec<u8> = [7u16, 65_535, 3].iter().flat_map(|t| t.to_le_bytes()).collect();
    let raw = open(&ids, Width::U16).unwrap();
    assert_eq!((raw.len(), raw.get(1), raw.get(3), raw.vocab_size()), (3, Some(65_535), None, 65_536));
    drop(raw);
    let with_header = open(&[header(20_240_520, 1, 3), ids.clone()].concat(), Width::U32).unwrap();
    assert_eq!((with_header.len(), with_header.get(0)), (3, Some(7)));
    drop(with_header);
    let wide =
        open(&[header(20_240_801, 7, 1), 100_000u32.to_le_bytes().to_vec()].concat(), Width::U16).unwrap();
    assert_eq!(wide.get(0), Some(100_000));
    assert!(wide.check(100_001).is_ok());
    assert!(wide.check(100_000).unwrap_err().to_string().contains("100000"));
    drop(wide);
    let hostile: [(&str, Vec<u8>, &str); 9] = [
        ("odd length", vec![1, 2, 3], "length"),
        ("cut header", header(20_240_520, 1, 3)[..1023].to_vec(), "header"),
        ("only the magic", header(20_240_520, 1, 3)[..4].to_vec(), "header"),
        ("unknown version", header(20_240_520, 2, 0), "version"),
        ("version of the other format", header(20_240_801, 1, 0), "version"),
        ("more tokens than bytes", [header(20_240_520, 1, 4), ids.clone()].concat(), "number of tokens"),
        ("fewer tokens than bytes", [header(20_240_520, 1, 2), ids.clone()].concat(), "number of tokens"),
        ("a length bomb", [header(20_240_520, 1, u32::MAX), ids.clone()].concat(), "number of tokens"),
        ("half a token", [header(20_240_520, 1, 3), ids[..5].to_vec()].concat(), "number of tokens"),
    ];
    for (what, bytes, field) in hostile {
        let error = open(&bytes, Width::U16).unwrap_err().to_string();
        assert!(error.contains(field), "{what}: {error}");
    }
    assert!(open(&[], Width::U16).is_ok_and(|f| f.is_empty()) || cfg!(not(unix)));
    assert!(TokenFile::open(&folder.path().join("absent.bin"), Width::U16).is_err());
}

#[test]
fn hostile_tokenizers_and_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let nested = "[".repeat(100_000);
    for text in ["", "{", "[]", "{}", "{\"model\": 3}", "{\"model\": {\"type\": \"BPE\"}}", &nested, "\u{0}"]
    {
        fs::write(&path, text).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains("tokenizer"), "{text:.20}: {error}");
    }
    let (_folder, corpus) = corpus_of(b"short", 0.0);
    let options = SamplerOptions { batch: 2, seq_len: 8, seed: 1, stateful: false };
    assert!(Sampler::new(&corpus, Part::Train, options).unwrap_err().to_string().contains("tokens"));
    for (batch, seq_len) in [(0, 8), (2, 0)] {
        assert!(Sampler::new(&corpus, Part::Train, SamplerOptions { batch, seq_len, ..options }).is_err());
    }
    assert!(Corpus::open(Path::new("absent"), &CorpusOptions::default()).is_err());
    assert!(
        Corpus::open(
            folder.path().parent().unwrap(),
            &CorpusOptions { validation: f64::NAN, ..CorpusOptions::default() }
        )
        .is_err()
    );
    let (_folder, corpus) = corpus_of(&letters(400), 0.0);
    let mut sampler = Sampler::new(&corpus, Part::Train, options).unwrap();
    assert!(sampler.seek(DataPosition { epoch: 0, batch: 1000 }).is_err());
    assert_eq!(sampler.position(), DataPosition { epoch: 0, batch: 0 });
}

#[test]
fn a_tokenizer_makes_ids_and_text_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let json = r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1,"world":2},"unk_token":"[UNK]"},
        "pre_tokenizer":{"type":"Whitespace"},"added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null}"#;
    fs::write(&path, json).unwrap();
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.vocab_size(), 3);
    assert_eq!(tokenizer.encode("hello world what").unwrap(), [1, 2, 0]);
    assert_eq!(tokenizer.decode(&[1, 2]).unwrap(), b"hello world");
    let text = folder.path().join("text.txt");
    fs::write(&text, "hello world ".repeat(50)).unwrap();
    let corpus = Corpus::open(&text, &CorpusOptions { tokenizer, ..CorpusOptions::default() }).unwrap();
    assert_eq!((corpus.len(), corpus.vocab_size()), (100, 3));
    assert!((corpus.bytes_per_token().unwrap() - 6.0).abs() < 1e-12);
}
