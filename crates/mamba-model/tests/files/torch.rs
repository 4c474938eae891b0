use crate::support::{Tensor, lm, memory_is_bounded, refused, tensors};
use mamba_model::files::{Dtype, export_state_spaces, load_pretrained};
use std::fs;
use std::path::{Path, PathBuf};

/// How an archive departs from a plain one.
#[derive(Clone, Copy, Default)]
struct Zip {
    method: u16,
    flags: u16,
    /// Sizes and offsets in the 64-bit records alone.
    wide: bool,
    /// Added to the counts of the end record.
    more_entries: u16,
    /// Added to the offset of every local header.
    shift: u64,
}

const HUGE: u64 = 0xffff_ffff;

impl Zip {
    fn pack(self, entries: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in entries {
            let common =
                [&[20u8, 0][..], &self.flags.to_le_bytes(), &self.method.to_le_bytes(), &[0; 8]].concat();
            let (size, at) = (data.len() as u64, file.len() as u64 + self.shift);
            let wide =
                [&[1u8, 0, 24, 0][..], &size.to_le_bytes(), &size.to_le_bytes(), &at.to_le_bytes()].concat();
            let extra = if self.wide { wide } else { Vec::new() };
            let [size, at] = [size, at].map(|n| ((if self.wide { HUGE } else { n }) as u32).to_le_bytes());
            directory.extend([b"PK\x01\x02\x14\0", common.as_slice(), &size, &size].concat());
            directory.extend((name.len() as u16).to_le_bytes());
            directory.extend((extra.len() as u16).to_le_bytes());
            directory.extend([&[0; 10], &at[..], name.as_bytes(), &extra].concat());
            file.extend([b"PK\x03\x04", common.as_slice(), &size, &size].concat());
            file.extend([&(name.len() as u16).to_le_bytes(), &[0; 2], name.as_bytes(), data].concat());
        }
        let (start, length, count) = (file.len() as u64, directory.len() as u64, entries.len() as u64);
        file.extend(directory);
        let end = file.len() as u64;
        if self.wide {
            file.extend([b"PK\x06\x06".as_slice(), &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat());
            file.extend([count, count, length, start].map(u64::to_le_bytes).concat());
            file.extend([b"PK\x06\x07".as_slice(), &[0; 4], &end.to_le_bytes(), &[1, 0, 0, 0]].concat());
        }
        let [length, start] =
            [length, start].map(|n| ((if self.wide { HUGE } else { n }) as u32).to_le_bytes());
        let count =
            ((if self.wide { 0xffff } else { count }) as u16).wrapping_add(self.more_entries).to_le_bytes();
        file.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &length, &start, &[0; 2]].concat());
        file
    }
}

fn text(s: &str) -> Vec<u8> {
    [b"X", &(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat()
}

fn int(n: i64) -> Vec<u8> {
    [b"\x8a\x08", &n.to_le_bytes()[..]].concat()
}

fn ints(values: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), values.iter().flat_map(|&n| int(n)).collect(), b"t".to_vec()].concat()
}

/// A tensor as torch pickles it.
fn tensor(kind: &str, key: &str, offset: i64, shape: &[i64], stride: &[i64]) -> Vec<u8> {
    let storage = format!("ctorch\n{kind}\n").into_bytes();
    let id =
        [b"(".to_vec(), text("storage"), storage, text(key), text("cpu"), int(1), b"tQ".to_vec()].concat();
    let rest =
        [int(offset), ints(shape), ints(stride), b"\x89ccollections\nOrderedDict\n)Rt".to_vec()].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(), id, rest, b"R".to_vec()].concat()
}

/// An ordered dictionary as torch pickles it, its `_metadata` included.
fn dictionary(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<u8> =
        pairs.iter().flat_map(|(name, value)| [text(name), value.clone()].concat()).collect();
    let metadata = [b"}".to_vec(), text("_metadata"), b"}sb.".to_vec()].concat();
    [b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec(), pairs, b"u".to_vec(), metadata].concat()
}

fn w(value: Vec<u8>) -> Vec<u8> {
    dictionary(&[("w", value)])
}

fn strides(shape: &[usize]) -> Vec<i64> {
    (0..shape.len()).map(|i| shape[i + 1..].iter().product::<usize>() as i64).collect()
}

/// The archive that torch would write of these tensors.
fn archive(all: &[Tensor], zip: Zip) -> Vec<u8> {
    let kind = |dtype: &str| match dtype {
        "F32" => "FloatStorage",
        "F16" => "HalfStorage",
        _ => "BFloat16Storage",
    };
    let keys: Vec<String> = (0..all.len()).map(|i| format!("m/data/{i}")).collect();
    let row = |(i, (name, dtype, shape, _)): (usize, &'_ Tensor)| {
        let sizes: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        (name.clone(), tensor(kind(dtype), &i.to_string(), 0, &sizes, &strides(shape)))
    };
    let rows: Vec<(String, Vec<u8>)> = all.iter().enumerate().map(row).collect();
    let rows: Vec<(&str, Vec<u8>)> =
        rows.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let pickle = dictionary(&rows);
    let mut entries: Vec<(&str, &[u8])> = vec![("m/data.pkl", &pickle), ("m/byteorder", b"little")];
    entries.extend(keys.iter().zip(all).map(|(key, t)| (key.as_str(), t.3.as_slice())));
    zip.pack(&entries)
}

/// A state-spaces folder with a config only, and where its archive goes.
fn folder() -> (tempfile::TempDir, PathBuf, Vec<Tensor>) {
    let folder = tempfile::tempdir().unwrap();
    export_state_spaces(&lm(11, 8, false), folder.path(), Dtype::F32).unwrap();
    let file = folder.path().join("model.safetensors");
    let all = tensors(&file);
    fs::remove_file(file).unwrap();
    let bin = folder.path().join("pytorch_model.bin");
    (folder, bin, all)
}

/// A folder whose weights are a good archive.
pub fn folder_with_archive() -> (tempfile::TempDir, PathBuf) {
    let (folder, bin, all) = folder();
    fs::write(&bin, archive(&all, Zip { wide: true, ..Zip::default() })).unwrap();
    (folder, bin)
}

#[test]
fn archives_load_in_every_type() {
    let (folder, bin, all) = folder();
    for zip in [Zip::default(), Zip { wide: true, ..Zip::default() }] {
        fs::write(&bin, archive(&all, zip)).unwrap();
        assert_eq!(load_pretrained(folder.path()).unwrap(), lm(11, 8, false));
        assert_eq!(load_pretrained(&bin).unwrap(), lm(11, 8, false));
    }
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let other = tempfile::tempdir().unwrap();
        export_state_spaces(&lm(11, 8, false), other.path(), dtype).unwrap();
        fs::write(&bin, archive(&tensors(&other.path().join("model.safetensors")), Zip::default())).unwrap();
        assert_eq!(load_pretrained(folder.path()).unwrap(), load_pretrained(other.path()).unwrap());
    }
}

#[test]
fn damaged_archives() {
    let (folder, bin, all) = folder();
    let check = |what: &str, bytes: &[u8], field: &str, problem: &str| {
        fs::write(&bin, bytes).unwrap();
        refused(what, folder.path(), field, problem);
    };
    let wide = Zip { wide: true, ..Zip::default() };
    for zip in [Zip::default(), wide] {
        let good = archive(&all, zip);
        for cut in (0..good.len()).step_by(211).chain(good.len() - 100..good.len()) {
            check(&format!("cut at {cut}"), &good[..cut], "archive", "no end record");
        }
        check("bytes behind", &[&good[..], b"x"].concat(), "archive", "no end record");
    }
    check("hello", b"hello", "archive", "no end record");
    check("nothing", b"", "archive", "no end record");
    let first = "m/byteorder";
    check("compressed", &archive(&all, Zip { method: 8, ..Zip::default() }), "m/data.pkl", "is compressed");
    check("encrypted", &archive(&all, Zip { flags: 1, ..Zip::default() }), "m/data.pkl", "is encrypted");
    check("more entries", &archive(&all, Zip { more_entries: 1, ..Zip::default() }), "archive", "cut off");
    check(
        "65,534 entries",
        &archive(&all, Zip { more_entries: 60_000, ..Zip::default() }),
        "archive",
        "cut off",
    );
    check(
        "fewer entries",
        &archive(&all, Zip { more_entries: u16::MAX, ..Zip::default() }),
        "archive",
        "no entry",
    );
    check("shifted", &archive(&all, Zip { shift: 1, ..Zip::default() }), first, "damaged local header");
    check("outside", &archive(&all, Zip { shift: 1 << 20, ..Zip::default() }), first, "the file has");
    check("at 2^63", &archive(&all, Zip { shift: 1 << 63, ..wide }), first, "the file has");
    check("at 2^64 - 1", &archive(&all, Zip { shift: u64::MAX - (1 << 20), ..wide }), first, "the file has");

    let good = archive(&all, wide);
    let end = good.len() - 22;
    let put = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for value in [u64::MAX, 1 << 62, good.len() as u64] {
        check("a locator that points outside", &put(end - 12, value), "archive", "cut off or doctored");
        check("a directory outside", &put(end - 28, value), "archive", "cut off or doctored");
    }
    check("a locator to nothing", &put(end - 12, 0), "archive", "damaged 64-bit end record");
    check("a long directory", &put(end - 36, 1 << 40), "archive", "at most 16777216 are read");
    check("endless entries", &put(end - 44, u64::MAX), "archive", "directory that is cut off");
    let size = good.windows(4).rposition(|w| w == [1, 0, 24, 0]).unwrap() + 4;
    check("an entry of two sizes", &put(size, 1 << 63), "m/data/22", "is compressed");
    let mut long = put(size, 1 << 63);
    long[size + 8..size + 16].copy_from_slice(&(1u64 << 63).to_le_bytes());
    check("an entry of 2^63 bytes", &long, "lm_head.weight", "reaches beyond the file");

    let pickle = w(tensor("FloatStorage", "0", 0, &[2], &[1]));
    let pack = |entries: &[(&str, &[u8])]| Zip::default().pack(entries);
    check("no pickle", &pack(&[("m/data/0", &[0; 8])]), "data.pkl", "is absent");
    check("no folder", &pack(&[("data.pkl", &pickle)]), "data.pkl", "is absent");
    check("no storage", &pack(&[("m/data.pkl", &pickle)]), "w", "storage 0, which the archive does not have");
    check("two of a name", &pack(&[("m/data.pkl", &pickle), ("m/data.pkl", &pickle)]), "m/data.pkl", "twice");
    check(
        "big endian",
        &pack(&[("m/data.pkl", &pickle), ("m/byteorder", b"big")]),
        "byteorder",
        "not `little`",
    );
    check("a long pickle", &pack(&[("m/data.pkl", &vec![b'N'; 17 << 20])]), "m/data.pkl", "at most 16777216");
}

fn check_pickle(folder: &Path, what: &str, pickle: &[u8], field: &str, problem: &str) {
    let bytes = Zip::default().pack(&[("m/data.pkl", pickle), ("m/data/0", &[0; 8])]);
    fs::write(folder.join("pytorch_model.bin"), bytes).unwrap();
    refused(what, folder, field, problem);
}

#[test]
fn pickles_with_wrong_tensors() {
    let (folder, bin, all) = folder();
    let check =
        |what, value: Vec<u8>, field, problem| check_pickle(folder.path(), what, &w(value), field, problem);
    let float = |offset, shape: &[i64], stride: &[i64]| tensor("FloatStorage", "0", offset, shape, stride);
    check("a good tensor of no model", float(0, &[2], &[1]), "backbone.embedding.weight", "is absent");
    check("past its storage", float(1, &[2], &[1]), "w", "reaches beyond its storage of 8 bytes");
    check("longer than its storage", float(0, &[3], &[1]), "w", "reaches beyond");
    check("a far offset", float(i64::MAX, &[2], &[1]), "w", "reaches beyond");
    check("a negative offset", float(-1, &[2], &[1]), "data.pkl", "negative offset");
    check("a negative size", float(0, &[-2], &[1]), "data.pkl", "a size of -2");
    check("a huge size", float(0, &[i64::MAX, 8], &[8, 1]), "w", "offsets overflow");
    check("a transposed tensor", float(0, &[2, 2], &[1, 2]), "w", "only contiguous");
    check("one element repeated", float(0, &[1000], &[0]), "w", "only contiguous");
    check("fewer strides than sizes", float(0, &[1000], &[]), "w", "only contiguous");
    check("more strides than sizes", float(0, &[2], &[2, 1]), "w", "only contiguous");
    check("nine dimensions", float(0, &[1; 9], &[1; 9]), "data.pkl", "9 dimensions");
    check("integers", tensor("LongStorage", "0", 0, &[1], &[1]), "w", "is stored as torch.LongStorage");
    check("doubles", tensor("DoubleStorage", "0", 0, &[1], &[1]), "w", "is stored as torch.DoubleStorage");
    check("another folder", tensor("FloatStorage", "../data.pkl", 0, &[1], &[1]), "w", "does not have");
    check("no tensor", b"N".to_vec(), "w", "is no tensor");
    check("a checkpoint in a checkpoint", b"}".to_vec(), "w", "is no tensor");
    let key = [b"\x80\x02}N".to_vec(), float(0, &[2], &[1]), b"s.".to_vec()].concat();
    check_pickle(folder.path(), "a key that is no text", &key, "data.pkl", "key that is no text");
    let twice = dictionary(&[("w", float(0, &[2], &[1])), ("w", float(0, &[1], &[1]))]);
    check_pickle(folder.path(), "twice", &twice, "w", "stands twice");
    let names: Vec<String> = (0..5_000).map(|i| i.to_string()).collect();
    let shared: Vec<(&str, Vec<u8>)> = names.iter().map(|n| (n.as_str(), float(0, &[2], &[1]))).collect();
    check_pickle(
        folder.path(),
        "few shared bytes",
        &dictionary(&shared),
        "backbone.embedding.weight",
        "absent",
    );
    let data = vec![0; 1 << 20];
    let shared: Vec<(&str, Vec<u8>)> = shared.iter().map(|(n, _)| (*n, float(0, &[1 << 18], &[1]))).collect();
    let bytes = Zip::default().pack(&[("m/data.pkl", &dictionary(&shared)), ("m/data/0", &data)]);
    fs::write(&bin, bytes).unwrap();
    refused("5 GiB of tensors in 2 MiB", folder.path(), "3", "shares its storage");
    let mut nan = all.clone();
    nan[0].3[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&bin, archive(&nan, Zip::default())).unwrap();
    refused("NaN", folder.path(), &all[0].0, "holds NaN at index 1");
    nan = all.clone();
    nan[0].2 = vec![96];
    fs::write(&bin, archive(&nan, Zip::default())).unwrap();
    refused("a flat embedding", folder.path(), &all[0].0, "has shape [96]");
}

#[test]
fn pickles_that_do_more_than_name_tensors() {
    let (folder, ..) = folder();
    let check = |what: &str, pickle: &[u8], problem: &str| {
        check_pickle(folder.path(), what, pickle, "data.pkl", problem)
    };
    check("os.system", b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.", "names `os.system`");
    check("posix.system, not called", b"\x80\x02cposix\nsystem\n0}.", "names `posix.system`");
    check("eval", b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", "names `builtins.eval`");
    check("getattr", b"\x80\x02cbuiltins\ngetattr\n.", "names `builtins.getattr`");
    check("another torch name", b"\x80\x02ctorch\nload\n.", "names `torch.load`");
    check("a dotted storage", b"\x80\x02ctorch.x\nStorage\n.", "names `torch.x.Storage`");
    check("a call of a storage", b"\x80\x02ctorch\nFloatStorage\n)R.", "calls `torch.FloatStorage`");
    check("an instance", b"\x80\x02(icollections\nOrderedDict\n.", "instruction 0x69");
    check("an object", b"\x80\x02(ccollections\nOrderedDict\no.", "instruction 0x6f");
    check("a new object", b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction 0x81");
    check("an extension", b"\x80\x02\x82\x01.", "instruction 0x82");
    check("a persistent line", b"\x80\x02Pstorage\n.", "instruction 0x50");
    check("an evaluated text", b"\x80\x02S'os'\n.", "instruction 0x53");
    check("an unknown instruction", b"\x80\x02\xff.", "instruction 0xff");
    check("arguments to a dictionary", b"\x80\x02ccollections\nOrderedDict\n((ttR.", "does not take");
    check("a tensor of nothing", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "does not take");
    check("a call of a text", b"\x80\x02X\x01\0\0\0a)R.", "no name");
    check("an attribute of a number", b"\x80\x02K\x01Nb.", "no dictionary");
    check("an item of a number", b"\x80\x02K\x01K\x01K\x01s.", "no dictionary");
    check("a key without a value", b"\x80\x02}(K\x01u.", "without a value");
    check("a reference to nothing", b"\x80\x02NQ.", "no storage");
    check("no dictionary", b"\x80\x02N.", "one dictionary");
    check("two dictionaries", b"\x80\x02}}.", "one dictionary");
    check("an empty stack", b"\x80\x02R.", "empty stack");
    check("a mark for a value", b"\x80\x02(R.", "empty stack");
    check("no mark", b"\x80\x02}u.", "no mark");
    check("a memory of nothing", b"\x80\x02q\0.", "remembers nothing");
    check("an unknown memory", b"\x80\x02h\x05.", "never remembered");
    check("no end", b"\x80\x02}", "cut off");
    check("a long text", b"\x80\x02X\xff\xff\xff\xffa.", "cut off");
    check("a text that is not UTF-8", b"\x80\x02X\x01\0\0\0\xff.", "not UTF-8");
    check("a long integer", b"\x80\x02\x8a\xff0.", "integer of 255 bytes");
    check("an endless name", b"\x80\x02cos", "cut off");
}

#[test]
fn pickles_that_cost_much() {
    let (folder, ..) = folder();
    let check = |what: &str, pickle: &[u8], problem: &str| {
        check_pickle(folder.path(), what, pickle, "data.pkl", problem)
    };
    let repeated = |head: &[u8], part: &[u8], n: usize| [head, &part.repeat(n), b"."].concat();
    check("a tall stack", &repeated(b"\x80\x02", b"N", 2 << 20), "more than 262144 values");
    check("tuples in tuples", &repeated(b"\x80\x02N", b"\x85", 1 << 20), "nests tuples deeper than 8");
    check("marks on marks", &repeated(b"\x80\x02", b"(", 1 << 20), "more than 262144 values");
    // Each tuple holds the one before twice: 2^n values, had they been copied.
    check("doubling tuples", &repeated(b"\x80\x02N", b"q\0h\0\x86", 60), "nests tuples deeper than 8");
    check("many dictionaries", &repeated(b"\x80\x02", b"}", 2 << 20), "more than 262144 values");
    let memory: Vec<u8> = (0..2u32 << 20).flat_map(|i| [b"r", &i.to_le_bytes()[..]].concat()).collect();
    check("a long memory", &[b"\x80\x02}", &memory[..], b"."].concat(), "more than 262144 values");
    check("a far memory", b"\x80\x02Nr\xff\xff\xff\xff.", "one dictionary");
    let wide = [b"\x80\x02(", &b"N".repeat(1 << 19)[..], b"tq\0", &b"h\0".repeat(1 << 20), b"."].concat();
    check("a wide tuple, many times", &wide, "more than 262144 values");
    memory_is_bounded("all");
}
