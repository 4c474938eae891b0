//! Text from a file or a folder.

use crate::error::{DataError, Result, io};
use ignore::WalkBuilder;
use std::path::{Path, PathBuf};

/// Byte between two documents of a byte-level corpus; no text contains it.
pub const SEPARATOR: u8 = 0;

/// A file that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// What it is: `empty`, for instance.
    pub reason: &'static str,
}

/// The documents of a file or folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Documents {
    /// Texts, in the order of their paths.
    pub texts: Vec<String>,
    /// Files that were left out.
    pub skipped: Vec<Skipped>,
}

/// Reads one text file, or every text file below a folder in the order of their paths. Files that are no UTF-8 text are
/// left out and reported; hidden files, and those that a .gitignore or .ignore file inside the folder names, are
/// passed over. Nothing outside the folder has a say: the same folder is the same data everywhere.
///
/// # Errors
/// [`DataError::Io`], [`DataError::NoText`] where a single file is no text.
pub fn read_documents(path: &Path) -> Result<Documents> {
    let mut found = Documents::default();
    if std::fs::metadata(path).map_err(io(path, "open"))?.is_file() {
        let bytes = std::fs::read(path).map_err(io(path, "read"))?;
        let text = as_text(bytes).map_err(|reason| DataError::NoText {
            path: path.to_owned(),
            problem: format!("the file is {reason}"),
        })?;
        found.texts.push(text);
        return Ok(found);
    }
    // `require_git`: ignore files count outside a repository, too. The order does not depend on the file system.
    let walk = WalkBuilder::new(path)
        .git_global(false)
        .git_exclude(false)
        .parents(false)
        .require_git(false)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .build();
    for entry in walk {
        let entry = entry.map_err(|e| {
            let action = "list";
            DataError::Io {
                path: path.to_owned(),
                action,
                source: e
                    .into_io_error()
                    .unwrap_or_else(|| std::io::Error::other("a loop of links, or a bad ignore file")),
            }
        })?;
        if !entry.file_type().is_some_and(|t| t.is_file()) {
            continue;
        }
        let bytes = match std::fs::read(entry.path()) {
            Ok(bytes) => bytes,
            Err(_) => {
                found.skipped.push(Skipped { path: entry.into_path(), reason: "not readable" });
                continue;
            }
        };
        match as_text(bytes) {
            Ok(text) => found.texts.push(text),
            Err(reason) => found.skipped.push(Skipped { path: entry.into_path(), reason }),
        }
    }
    Ok(found)
}

/// Why a folder without text has none.
pub(crate) fn why_no_text(skipped: &[Skipped]) -> String {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for file in skipped {
        *counts.entry(file.reason).or_default() += 1;
    }
    let files = |n| if n == 1 { "1 file".to_owned() } else { format!("{n} files") };
    let reasons: Vec<String> = counts.iter().map(|(reason, &n)| format!("{} ({reason})", files(n))).collect();
    let left_out = if reasons.is_empty() { "no file".to_owned() } else { reasons.join(", ") };
    format!("no text in this folder; left out: {left_out}; hidden and ignored files are not looked at")
}

fn as_text(bytes: Vec<u8>) -> std::result::Result<String, &'static str> {
    if bytes.contains(&SEPARATOR) {
        return Err("binary: it holds a zero byte");
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => Err("empty"),
        Ok(text) => Ok(text),
        Err(_) => Err("no UTF-8 text"),
    }
}
