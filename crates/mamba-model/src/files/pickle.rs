//! The part of Python's pickle that a file of tensors needs. Nothing is executed: a name outside the short list is
//! an error, and so is every other instruction. What a pickle may cost is bounded: the number of values it makes in
//! all, the depth of its tuples, the dimensions of its shapes. Protocol: the Python standard library's
//! `pickletools`.

use super::source::MAX_DIMS;
use std::collections::HashMap;
use std::rc::Rc;

/// Most values that a pickle may make; one tensor takes about 27, so this is near 10,000 tensors.
const MAX_VALUES: usize = 1 << 18;
/// Deepest tuple in a tuple; a tensor takes 2. Without a limit, dropping one would overflow the call stack.
const MAX_DEPTH: usize = 8;

/// A value of the machine. Tuples and lists are shared, so copies from the memo cost nothing.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(Rc<str>),
    Tuple(Rc<Tuple>),
    /// An ordered dictionary that is being filled; position in `Machine::dicts`.
    Dict(usize),
    /// module.name
    Global(Rc<str>),
    Storage(Rc<StorageRef>),
    Tensor(Rc<TensorRef>),
    Mark,
}

#[derive(Debug, PartialEq)]
pub(super) struct Tuple {
    depth: usize,
    values: Vec<Value>,
}

/// From ("storage", type, key, location, elements).
#[derive(Debug, PartialEq)]
pub(super) struct StorageRef {
    kind: Rc<str>,
    key: Rc<str>,
}

/// A view of a storage, counted in elements.
#[derive(Debug, PartialEq)]
pub(super) struct TensorRef {
    /// Type of the storage, e.g. `torch.FloatStorage`.
    pub kind: Rc<str>,
    /// Name of the storage's entry.
    pub key: Rc<str>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
}

/// Names that may be called; besides them only types of storages may be named.
const CALLABLE: [&str; 3] =
    ["collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"];

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    memo: HashMap<usize, Value>,
    made: usize,
    dicts: Vec<Vec<(Value, Value)>>,
}

type Step<T> = Result<T, String>;

/// The pairs of the dictionary that a pickle holds.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(Value, Value)>, String> {
    let mut m = Machine { bytes, at: 0, stack: Vec::new(), memo: HashMap::new(), made: 0, dicts: Vec::new() };
    while m.step()? {}
    match m.stack.as_slice() {
        [Value::Dict(index)] => Ok(std::mem::take(&mut m.dicts[*index])),
        _ => Err("does not end as one dictionary".to_owned()),
    }
}

impl Machine<'_> {
    fn take(&mut self, n: usize) -> Step<&[u8]> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.bytes.len()).ok_or("is cut off")?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn number(&mut self, n: usize) -> Step<usize> {
        Ok(self.take(n)?.iter().rev().fold(0, |x, &b| x << 8 | usize::from(b)))
    }

    fn text(&mut self, n: usize) -> Step<Rc<str>> {
        std::str::from_utf8(self.take(n)?)
            .map(Rc::from)
            .map_err(|_| "holds a name that is not UTF-8".to_owned())
    }

    fn line(&mut self) -> Step<Rc<str>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let n = rest.iter().position(|&b| b == b'\n').ok_or("is cut off")?;
        let text = self.text(n)?;
        self.at += 1;
        Ok(text)
    }

    fn count(&mut self) -> Step<()> {
        self.made += 1;
        match self.made <= MAX_VALUES {
            true => Ok(()),
            false => Err(format!("makes more than {MAX_VALUES} values")),
        }
    }

    fn push(&mut self, value: Value) -> Step<()> {
        self.count()?;
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        match self.stack.pop() {
            Some(Value::Mark) | None => Err("takes a value from an empty stack".to_owned()),
            Some(value) => Ok(value),
        }
    }

    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.stack.iter().rposition(|v| matches!(v, Value::Mark)).ok_or("has no mark")?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    fn pop_n(&mut self, n: usize) -> Step<Vec<Value>> {
        let mut values = (0..n).map(|_| self.pop()).collect::<Step<Vec<_>>>()?;
        values.reverse();
        Ok(values)
    }

    fn remember(&mut self, index: usize) -> Step<()> {
        self.count()?;
        let value = self.stack.last().cloned().ok_or("remembers nothing")?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Step<()> {
        let value = self.memo.get(&index).cloned();
        self.push(value.ok_or_else(|| format!("recalls {index}, which it never remembered"))?)
    }

    fn push_tuple(&mut self, values: Vec<Value>) -> Step<()> {
        let depth = |v: &Value| if let Value::Tuple(inner) = v { inner.depth } else { 0 };
        let depth = 1 + values.iter().map(depth).max().unwrap_or(0);
        if depth > MAX_DEPTH {
            return Err(format!("nests tuples deeper than {MAX_DEPTH}"));
        }
        self.push(Value::Tuple(Rc::new(Tuple { depth, values })))
    }

    /// A name. It is refused where it is met, called or not.
    fn push_global(&mut self, module: &str, name: &str) -> Step<()> {
        let full = format!("{module}.{name}");
        let storage = module == "torch" && name.ends_with("Storage");
        if !storage && !CALLABLE.contains(&full.as_str()) {
            return Err(format!("names `{full:.80}`, which no file of tensors needs"));
        }
        self.push(Value::Global(full.into()))
    }

    fn new_dict(&mut self) -> Step<()> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    fn set_items(&mut self, items: Vec<Value>) -> Step<()> {
        let Some(Value::Dict(dict)) = self.stack.last() else {
            return Err("sets an item of something that is no dictionary".to_owned());
        };
        let dict = *dict;
        for pair in items.chunks(2) {
            let [key, value] = pair else { return Err("sets a key without a value".to_owned()) };
            self.dicts[dict].push((key.clone(), value.clone()));
        }
        Ok(())
    }

    /// One instruction; false at the end.
    fn step(&mut self) -> Step<bool> {
        let code = self.number(1)? as u8;
        match code {
            b'.' => return Ok(false),
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.push(Value::Mark)?,
            b')' => self.push_tuple(Vec::new())?,
            b'}' => self.new_dict()?,
            b'N' => self.push(Value::None)?,
            0x88 | 0x89 => self.push(Value::Bool(code == 0x88))?,
            b'K' | b'M' | b'J' => self.integer(code)?,
            0x8a => self.long()?,
            b'X' | 0x8c => {
                let n = self.number(if code == b'X' { 4 } else { 1 })?;
                let text = self.text(n)?;
                self.push(Value::Text(text))?;
            }
            b'q' | b'r' => {
                let index = self.number(if code == b'q' { 1 } else { 4 })?;
                self.remember(index)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' | b'j' => {
                let index = self.number(if code == b'h' { 1 } else { 4 })?;
                self.recall(index)?;
            }
            b't' | 0x85..=0x87 => {
                let values =
                    if code == b't' { self.pop_mark()? } else { self.pop_n(usize::from(code - 0x84))? };
                self.push_tuple(values)?;
            }
            b's' => {
                let items = self.pop_n(2)?;
                self.set_items(items)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(items)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(&module, &name)?;
            }
            0x93 => {
                let pair = self.pop_n(2)?;
                let [Value::Text(module), Value::Text(name)] = pair.as_slice() else {
                    return Err("names nothing".to_owned());
                };
                self.push_global(module, name)?;
            }
            b'Q' => self.persistent()?,
            b'R' => self.call()?,
            b'b' => self.attributes()?,
            other => {
                return Err(format!("holds the instruction {other:#04x}, which no file of tensors needs"));
            }
        }
        Ok(true)
    }

    /// The attributes of an ordered dictionary (its `_metadata`) say nothing about the tensors.
    fn attributes(&mut self) -> Step<()> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(_)) => Ok(()),
            _ => Err("sets attributes of something that is no dictionary".to_owned()),
        }
    }

    fn integer(&mut self, code: u8) -> Step<()> {
        let value = match code {
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            _ => i64::from(self.number(4)? as u32 as i32),
        };
        self.push(Value::Int(value))
    }

    fn long(&mut self) -> Step<()> {
        let n = self.number(1)?;
        if n > 8 {
            return Err(format!("holds an integer of {n} bytes"));
        }
        let raw = self.number(n)? as u64;
        let shift = 64 - 8 * n as u32;
        let value = if n == 0 { 0 } else { ((raw << shift) as i64) >> shift };
        self.push(Value::Int(value))
    }

    /// A storage, given as ("storage", type, key, location, elements).
    fn persistent(&mut self) -> Step<()> {
        let id = self.pop()?;
        if let Value::Tuple(parts) = &id
            && let [Value::Text(tag), Value::Global(kind), Value::Text(key), Value::Text(_), Value::Int(_)] =
                &parts.values[..]
            && &**tag == "storage"
        {
            let storage = StorageRef { kind: kind.clone(), key: key.clone() };
            return self.push(Value::Storage(Rc::new(storage)));
        }
        Err("refers to something that is no storage".to_owned())
    }

    fn call(&mut self) -> Step<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Global(name) = function else { return Err("calls something that has no name".to_owned()) };
        let Value::Tuple(arguments) = arguments else {
            return Err(format!("calls `{name}` without arguments"));
        };
        match (&*name, &arguments.values[..]) {
            ("collections.OrderedDict", []) => self.new_dict(),
            ("torch._utils._rebuild_parameter", [Value::Tensor(tensor), ..]) => {
                self.push(Value::Tensor(tensor.clone()))
            }
            (
                "torch._utils._rebuild_tensor_v2",
                [Value::Storage(storage), Value::Int(offset), shape, stride, ..],
            ) => {
                let tensor = TensorRef {
                    kind: storage.kind.clone(),
                    key: storage.key.clone(),
                    offset: usize::try_from(*offset).map_err(|_| "has a negative offset")?,
                    shape: sizes(shape)?,
                    stride: sizes(stride)?,
                };
                self.push(Value::Tensor(Rc::new(tensor)))
            }
            _ => Err(format!("calls `{name}` with arguments it does not take")),
        }
    }
}

fn sizes(value: &Value) -> Step<Vec<usize>> {
    let Value::Tuple(tuple) = value else { return Err("has a shape that is no tuple".to_owned()) };
    if tuple.values.len() > MAX_DIMS {
        return Err(format!("has a shape of {} dimensions, at most {MAX_DIMS} are read", tuple.values.len()));
    }
    let size = |v: &Value| match v {
        Value::Int(n) => usize::try_from(*n).map_err(|_| format!("has a size of {n}")),
        _ => Err("has a size that is no number".to_owned()),
    };
    tuple.values.iter().map(size).collect()
}
