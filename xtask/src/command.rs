//! Running other programs, and saying what was run so that anybody can repeat it by hand.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program and its arguments, from a line without quotes.
pub(crate) fn line(line: &str) -> Command {
    let mut words = line.split_whitespace();
    match words.next() {
        Some("cargo") => cargo(&words.collect::<Vec<_>>().join(" ")),
        Some(program) => {
            let mut command = Command::new(program);
            command.args(words);
            command
        }
        None => Command::new("true"),
    }
}

/// The cargo that runs us, with these arguments.
pub(crate) fn cargo(arguments: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments.split_whitespace());
    // `cargo run` describes xtask to us. A build script that watches such a variable would run
    // again each time xtask and a person take turns.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Sets `name` unless whoever called us has set it.
pub(crate) fn default_env(command: &mut Command, name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
}

/// Runs it in the open.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    println!("  $ {}", show(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}; see above", show(command))),
        Err(error) => Err(format!("`{}` cannot be started: {error}", show(command))),
    }
}

/// Runs it and returns what it writes.
pub(crate) fn read(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("`{}` cannot be started: {error}", show(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` ended with {}:\n{said}", show(command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether it can be run and is content.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs it quietly, and ends it when it takes longer than `limit`.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<(), String> {
    let cannot = |error: std::io::Error| error.to_string();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break status;
        }
        if start.elapsed() >= limit {
            child.kill().and_then(|()| child.wait()).map_err(cannot)?;
            return Err(format!("no answer in {} s", limit.as_secs()));
        }
        thread::sleep(Duration::from_millis(50));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).map_err(cannot)?;
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(if last.is_empty() { status.to_string() } else { last.to_owned() })
}

/// As one would type it.
pub(crate) fn show(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        let quoted = if value.contains(' ') { format!("\"{value}\"") } else { value.into_owned() };
        Some(format!("{}={quoted}", name.to_string_lossy()))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_one_would_type() {
        let mut command = cargo("doc --no-deps");
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(show(&command), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
        assert_eq!(show(&line("rustup component  add")), "rustup component add");
    }

    #[test]
    fn a_failure_tells_which_command_and_why() {
        assert_eq!(run(&mut line("true")), Ok(()));
        let error = run(&mut line("false")).unwrap_err();
        assert!(error.contains("`false`") && error.contains('1'), "{error}");
        let error = run(&mut line("no-such-program-here --now")).unwrap_err();
        assert!(error.contains("no-such-program-here --now"), "{error}");
        let error = read(&mut line("cat /no/such/file")).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        assert!(!succeeds(&mut line("no-such-program-here")));
    }

    #[test]
    fn what_does_not_answer_is_ended() {
        let start = Instant::now();
        let error = run_within(&mut line("sleep 600"), Duration::from_millis(100)).unwrap_err();
        assert!(error.contains("no answer"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(600));
        let error = run_within(&mut line("cat /no/such/file"), Duration::MAX).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(run_within(&mut line("true"), Duration::MAX), Ok(()));
    }
}
