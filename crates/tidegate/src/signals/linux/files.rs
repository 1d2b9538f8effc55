//! Reading small files of the kernel, below a root, and saying what is wrong with them.
//!
//! To open one takes longer than to read it. What is read a hundred times a second stays open
//! ([`Files::read_again`]): the kernel writes such a file anew whenever it is read from its
//! beginning, and one of a process that has ended says so.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// More than any of these files has, but for a table of mounts with ten thousand lines.
const BYTES_MAX: u64 = 4 << 20;
/// More than most of them have: one call of the system then reads all of it, where beginning with
/// nothing takes eight.
const BYTES_USUAL: usize = 4 << 10;

/// How many files stay open: those of a program of some dozen threads.
const OPEN_MAX: usize = 64;

/// Why something is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// A file that is not there, or not for us.
    #[error("{} cannot be read: {kind}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        kind: io::ErrorKind,
    },
    /// A file that says something else than it should.
    #[error("{} should hold {wanted}, but holds `{found}`", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What should be there.
        wanted: &'static str,
        /// What is there, or the beginning of it.
        found: String,
    },
    /// This machine, or this kernel, does not have it.
    #[error("there is no {what} here")]
    Absent {
        /// What is missing.
        what: &'static str,
    },
    /// The process watched has ended, and another one has its number.
    #[error("process {pid} is another one than when it was first looked at")]
    Replaced {
        /// Its number.
        pid: u32,
    },
}

impl Unknown {
    /// Whether the file is just not there: at many levels of a hierarchy most are not.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { kind: io::ErrorKind::NotFound, .. })
    }
}

/// A file as it was read.
#[derive(Debug)]
pub(super) struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    fn new(path: &Path, bytes: &[u8]) -> Self {
        Self { path: path.into(), text: String::from_utf8_lossy(bytes).into_owned() }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// What it holds is not `wanted`.
    pub(super) fn malformed(&self, wanted: &'static str) -> Unknown {
        let found = self.text.trim().chars().take(80).collect();
        Unknown::Malformed { path: self.path.clone(), wanted, found }
    }

    /// The whole file as one number.
    pub(super) fn number<T: core::str::FromStr>(&self) -> Result<T, Unknown> {
        self.text.trim().parse().map_err(|_| self.malformed("a number"))
    }

    /// The number after the word `key`, in a file of lines `key number`.
    pub(super) fn field(&self, key: &'static str) -> Result<u64, Unknown> {
        let line = self.text.lines().find_map(|line| {
            let (name, value) = line.split_once(char::is_whitespace)?;
            (name.trim_end_matches(':') == key).then_some(value.trim())
        });
        // Sizes come with a unit, which is always the same.
        let value = line.and_then(|value| value.trim_end_matches("kB").trim().parse().ok());
        value.ok_or_else(|| self.malformed(key))
    }
}

/// Files below a root: that of the system, or a tree made for a test.
#[derive(Debug, Clone)]
pub(super) struct Files {
    root: PathBuf,
    open: Open,
}

/// Files that stay open. A copy begins with none.
#[derive(Debug, Default)]
struct Open(Mutex<BTreeMap<PathBuf, std::fs::File>>);

impl Clone for Open {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Open {
    /// What stands in the file at `path` now, if it was read before and is still of use.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open.get(path)?;
        let mut bytes = vec![0; BYTES_USUAL];
        match file.read_at(&mut bytes, 0) {
            Ok(count) if 0 < count && count < BYTES_USUAL => {
                bytes.truncate(count);
                Some(bytes)
            }
            _ => {
                open.remove(path);
                None
            }
        }
    }

    fn keep(&self, path: &Path, file: std::fs::File) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MAX {
            // Those of threads that have ended are among them, and nobody asks for them any more.
            open.clear();
        }
        open.insert(path.to_owned(), file);
    }
}

impl Files {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), open: Open::default() }
    }

    /// Whether these are the system's own.
    pub(super) fn is_system(&self) -> bool {
        self.root == Path::new("/")
    }

    fn locate(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.locate(path).exists()
    }

    pub(super) fn read(&self, path: impl AsRef<Path>) -> Result<Text, Unknown> {
        self.read_and(path.as_ref(), |_| {})
    }

    /// As [`Files::read`], of a file that will soon be read again.
    pub(super) fn read_again(&self, path: impl AsRef<Path>) -> Result<Text, Unknown> {
        let path = path.as_ref();
        match self.open.read(path) {
            Some(bytes) => Ok(Text::new(path, &bytes)),
            // Files of other roots are not the kernel's, and may be replaced.
            None if self.is_system() => self.read_and(path, |file| self.open.keep(path, file)),
            None => self.read(path),
        }
    }

    fn read_and(&self, path: &Path, after: impl FnOnce(std::fs::File)) -> Result<Text, Unknown> {
        let mut bytes = Vec::with_capacity(BYTES_USUAL);
        std::fs::File::open(self.locate(path))
            .and_then(|mut file| {
                Read::by_ref(&mut file).take(BYTES_MAX).read_to_end(&mut bytes)?;
                after(file);
                Ok(())
            })
            .map_err(|error| Unknown::Unreadable { path: path.into(), kind: error.kind() })?;
        Ok(Text::new(path, &bytes))
    }

    /// As [`Files::read`], where a file that is not there is no trouble.
    pub(super) fn read_if_there(&self, path: impl AsRef<Path>) -> Result<Option<Text>, Unknown> {
        Self::if_there(self.read(path))
    }

    /// As [`Files::read_again`], where a file that is not there is no trouble.
    pub(super) fn read_again_if_there(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<Option<Text>, Unknown> {
        Self::if_there(self.read_again(path))
    }

    fn if_there(outcome: Result<Text, Unknown>) -> Result<Option<Text>, Unknown> {
        match outcome {
            Ok(text) => Ok(Some(text)),
            Err(unknown) if unknown.is_missing() => Ok(None),
            Err(unknown) => Err(unknown),
        }
    }

    /// The numbers that name the entries of a directory, at most `count`.
    pub(super) fn numbers_in(&self, path: &Path, count: usize) -> Result<Vec<u32>, Unknown> {
        let entries = std::fs::read_dir(self.locate(path))
            .map_err(|error| Unknown::Unreadable { path: path.into(), kind: error.kind() })?;
        let number =
            |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        Ok(entries.filter_map(number).take(count).collect())
    }
}
