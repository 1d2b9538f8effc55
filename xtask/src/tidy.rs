//! House rules that no other tool knows, checked over every file of the repository.

mod code;
mod rules;

use crate::command::{line, read};
use rules::{Finding, RULES, Source};
use std::io::ErrorKind;
use std::path::Path;

/// Checks every rule on every file, and prints all that breaks one.
pub(crate) fn step() -> Result<(), String> {
    let paths = paths()?;
    let mut findings = Vec::new();
    for path in &paths {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            // Deleted, but not yet for git; or a link to a directory.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
                continue;
            }
            Err(error) => return Err(format!("cannot read {path}: {error}")),
        };
        // Pictures and the like have no lines.
        if let Ok(text) = String::from_utf8(bytes) {
            findings.extend(check(&Source::new(path, &text)));
        }
    }
    for finding in &findings {
        println!("  {finding}");
    }
    if findings.is_empty() {
        println!("  {} files, {} rules", paths.len(), RULES.len());
        return Ok(());
    }
    Err(format!("{} lines break a rule; see above", findings.len()))
}

fn check(source: &Source<'_>) -> Vec<Finding> {
    RULES.iter().flat_map(|rule| rule.check(source)).collect()
}

/// All files that are, or are about to be, part of the repository.
fn paths() -> Result<Vec<String>, String> {
    let tracked = "git ls-files -z --cached --others --exclude-standard";
    if let Ok(list) = read(&mut line(tracked)) {
        return Ok(list.split_terminator('\0').map(str::to_owned).collect());
    }
    println!("  git does not answer: looking at every file that is here");
    let mut found = Vec::new();
    walk(Path::new("."), &mut found).map_err(|error| format!("cannot list files: {error}"))?;
    Ok(found)
}

fn walk(folder: &Path, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && name != ".git" {
                walk(&path, found)?;
            }
        } else {
            let path = path.strip_prefix(".").unwrap_or(&path);
            found.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_same_files_are_found() {
        let mut found = Vec::new();
        walk(Path::new("."), &mut found).unwrap();
        assert!(found.contains(&"Cargo.toml".to_owned()), "{found:?}");
        assert!(found.contains(&"src/tidy/rules.rs".to_owned()), "{found:?}");
    }
}
