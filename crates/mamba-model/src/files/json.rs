//! JSON of checkpoints: bounded in length, a key that repeats is refused, fields are taken one by one.

use super::{atomic_write, bad, open};
use crate::error::Result;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

/// Most keys of an object: more than twice the tensors of the deepest model.
const MAX_KEYS: usize = 1 << 17;
/// Longest config.
pub(super) const MAX_CONFIG: u64 = 1 << 20;

/// The keys of an object with their values as text; a key may stand there twice.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if pairs.len() == MAX_KEYS {
                        return Err(A::Error::custom(format!("more than {MAX_KEYS} keys")));
                    }
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The object that `text`, found at `field`, holds. Values stay text, so a hostile one costs nothing.
pub(super) fn object<'a>(path: &Path, field: &str, text: &'a str) -> Result<BTreeMap<String, &'a RawValue>> {
    let Pairs(pairs) =
        serde_json::from_str(text).map_err(|e| bad(path, field, format!("is no JSON object: {e}")))?;
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(bad(path, key, format!("stands twice in the {field}")));
        }
        map.insert(key, value);
    }
    Ok(map)
}

/// The texts of an object of texts.
pub(super) fn texts(path: &Path, field: &str, text: &str) -> Result<BTreeMap<String, String>> {
    let pair = |(key, value): (String, &RawValue)| match serde_json::from_str(value.get()) {
        Ok(value) => Ok((key, value)),
        Err(e) => Err(bad(path, format!("{field}.{key}"), format!("must be a text: {e}"))),
    };
    object(path, field, text)?.into_iter().map(pair).collect()
}

/// A text file of at most `limit` bytes.
pub(super) fn read_text(path: &Path, limit: u64) -> Result<String> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(super::io(path, "read"))?;
    if bytes.len() as u64 > limit {
        return Err(bad(path, "length", format!("is above {limit} bytes, the most that are read")));
    }
    String::from_utf8(bytes).map_err(|e| bad(path, "text", format!("is not UTF-8: {e}")))
}

/// Writes a JSON value for people to read.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| bad(path, "config", e.to_string()))?;
    atomic_write(path, |file| file.write_all(text.as_bytes()))
}

/// Reads typed fields off a config and remembers which were asked for.
pub(super) struct Fields<'a> {
    path: &'a Path,
    /// Where the object stands in the file: empty, or a key with a dot behind.
    prefix: String,
    map: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    pub fn new(path: &'a Path, text: &'a str) -> Result<Self> {
        Ok(Self { path, prefix: String::new(), map: object(path, "config", text)? })
    }

    /// The fields of an object inside this one; none where it is absent or null.
    pub fn nested(&mut self, key: &str) -> Result<Self> {
        let map = match self.map.remove(key).map(RawValue::get).filter(|text| *text != "null") {
            Some(text) => object(self.path, key, text)?,
            None => BTreeMap::new(),
        };
        Ok(Self { path: self.path, prefix: format!("{}{key}.", self.prefix), map })
    }

    fn bad<T>(&self, key: &str, problem: String) -> Result<T> {
        Err(bad(self.path, format!("{}{key}", self.prefix), problem))
    }

    /// The value of a key; null counts as absent.
    pub fn take(&mut self, key: &str) -> Result<Option<Value>> {
        let Some(raw) = self.map.remove(key) else { return Ok(None) };
        match serde_json::from_str(raw.get()) {
            Ok(Value::Null) => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(e) => self.bad(key, format!("cannot be read: {e}")),
        }
    }

    pub fn size(&mut self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.take(key)? else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => self.bad(key, format!("is {value}, a count is wanted")),
        }
    }

    pub fn need_size(&mut self, key: &str) -> Result<usize> {
        match self.size(key)? {
            Some(n) => Ok(n),
            None => self.bad(key, "is absent".to_owned()),
        }
    }

    /// A count that another field fixes already: absent, or equal to it.
    pub fn same_size(&mut self, key: &str, expected: usize, meaning: &str) -> Result<()> {
        match self.size(key)? {
            Some(n) if n != expected => self.bad(key, format!("is {n}, {meaning} is {expected}")),
            _ => Ok(()),
        }
    }

    pub fn flag(&mut self, key: &str, default: bool) -> Result<bool> {
        match self.take(key)? {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(v) => self.bad(key, format!("is {v}, true or false is wanted")),
        }
    }

    pub fn number(&mut self, key: &str, default: f64) -> Result<f64> {
        match self.take(key)? {
            None => Ok(default),
            Some(v) => v.as_f64().map_or_else(|| self.bad(key, format!("is {v}, a number is wanted")), Ok),
        }
    }

    /// A rank: a count, or "auto".
    pub fn rank(&mut self, key: &str) -> Result<Option<usize>> {
        if self.map.get(key).is_some_and(|raw| raw.get() == "\"auto\"") {
            self.map.remove(key);
            return Ok(None);
        }
        self.size(key)
    }

    /// A field with one accepted value, which it also has where it is absent.
    pub fn only(&mut self, key: &str, accepted: &Value) -> Result<()> {
        match self.take(key)? {
            Some(v) if v != *accepted => self.bad(key, format!("is {v}; only {accepted} is read")),
            _ => Ok(()),
        }
    }

    /// A list or an object that must be empty where it is there.
    pub fn empty(&mut self, key: &str, what: &str) -> Result<()> {
        match self.take(key)? {
            Some(Value::Array(list)) if list.is_empty() => Ok(()),
            Some(Value::Object(map)) if map.is_empty() => Ok(()),
            Some(v) => self.bad(key, format!("is {v}; {what} are not read")),
            None => Ok(()),
        }
    }

    /// Refuses what is left, but for the neutral keys.
    pub fn finish(self, neutral: &[&str]) -> Result<()> {
        match self.map.iter().find(|(key, _)| !neutral.contains(&key.as_str())) {
            Some((key, value)) => {
                let shown: String = value.get().chars().take(60).collect();
                self.bad(key, format!("({shown}) is not known; it may change the model"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Result<Fields<'_>> {
        Fields::new(Path::new("config.json"), text)
    }

    #[test]
    fn a_repeated_key_is_refused_at_every_depth() {
        let error = fields(r#"{"a": 1, "b": 2, "a": 1}"#).err().unwrap().to_string();
        assert!(error.contains("`a` stands twice"), "{error}");
        let mut outer = fields(r#"{"in": {"x": 1, "x": 2}}"#).unwrap();
        let error = outer.nested("in").err().unwrap().to_string();
        assert!(error.contains("`x` stands twice in the in"), "{error}");
    }

    #[test]
    fn fields_are_typed_and_named() {
        let mut f = fields(r#"{"n": 3, "bad": -1, "r": "auto", "none": null, "in": {"k": 1.5}, "e": 1e400}"#)
            .unwrap();
        assert_eq!(f.size("n").unwrap(), Some(3));
        assert_eq!(f.size("none").unwrap(), None);
        assert_eq!(f.rank("r").unwrap(), None);
        assert!(f.size("bad").unwrap_err().to_string().contains("`bad` is -1"));
        assert!(f.number("e", 0.0).unwrap_err().to_string().contains("`e` cannot be read"));
        let mut inner = f.nested("in").unwrap();
        assert!(inner.size("k").unwrap_err().to_string().contains("`in.k` is 1.5"));
        f.finish(&[]).unwrap();
        assert!(fields(r#"{"odd": 1}"#).unwrap().finish(&["even"]).is_err());
    }

    #[test]
    fn too_many_keys_are_refused() {
        let text: Vec<String> = (0..=MAX_KEYS).map(|i| format!("\"{i}\":0")).collect();
        let error = object(Path::new("x"), "header", &format!("{{{}}}", text.join(","))).err().unwrap();
        assert!(error.to_string().contains("131072 keys"), "{error}");
    }
}
