//! What noise cannot move: instructions and allocations of the proxy, for each request.
//!
//! The proxy runs under callgrind, which counts the instructions of each thread and how often each
//! function is called; kernel time does not count. It is started twice, and asked for a different
//! number of requests: what both have in common is the start, and the rest is the requests'. Of its
//! threads the one counts that speaks HTTP. (The others look at signals by the clock, and under
//! callgrind the clock is forty times too fast.)
//!
//! An allocation is a call of the allocator from outside of it, be it for new memory or for more.
//!
//! It needs valgrind and h2load, and a build that valgrind can run:
//!
//! ```sh
//! cargo run --release -p tidegate-bench --features valgrind -- proxy --counts
//! ```

use super::Case;
use crate::Outcome;
use crate::load::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Enough that connections and tables are there.
const FEW: u64 = 1_000;
/// The rest of these is what is counted; at some 3,000 a second under callgrind that is quick.
const MANY: u64 = 5_000;

/// What one thread did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    instructions: u64,
    allocations: u64,
    /// Whether it speaks HTTP.
    serves: bool,
}

/// At most so many instructions and allocations for a request.
const fn bar(case: Case) -> Option<(f64, f64)> {
    match case {
        Case::H1 => Some((35_000.0, 12.0)),
        Case::H1Refuse => Some((12_000.0, 8.0)),
        _ => None,
    }
}

/// Counts, prints, and fails if there is more than there may be.
pub(super) fn run(cases: &[Case], as_json: bool) -> Outcome {
    if !cfg!(feature = "valgrind") {
        return Err("this build cannot run under valgrind: add `--features valgrind`".into());
    }
    let server = Server::start(None)?;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    for &case in cases {
        let (few, many) =
            (threads(case, server.address, FEW)?, threads(case, server.address, MANY)?);
        let growth = |thread: &u32| {
            let (few, many) = (few.get(thread).copied().unwrap_or_default(), many[thread]);
            Count {
                instructions: many.instructions.saturating_sub(few.instructions),
                allocations: many.allocations.saturating_sub(few.allocations),
                serves: many.serves,
            }
        };
        let serving = many.keys().map(growth).filter(|count| count.serves);
        let Some(count) = serving.max_by_key(|count| count.instructions) else {
            return Err("callgrind has counted nothing".into());
        };
        let each = |count: u64| count as f64 / (MANY - FEW) as f64;
        let (instructions, allocations) = (each(count.instructions), each(count.allocations));
        let within = bar(case)
            .is_none_or(|(most, allocated)| instructions <= most && allocations <= allocated);
        if !within {
            missed.push(case.name());
        }
        rows.push(json!({
            "case": case.name(),
            "instructions_per_request": instructions.round(),
            "allocations_per_request": (allocations * 10.0).round() / 10.0,
            "bar": bar(case),
            "within_bar": within,
        }));
    }
    print(&rows, as_json);
    match missed.as_slice() {
        [] => Ok(()),
        cases => Err(format!("more than there may be: {}", cases.join(", ")).into()),
    }
}

fn print(rows: &[Value], as_json: bool) {
    if as_json {
        println!("{}", json!({ "requests": MANY - FEW, "rows": rows }));
        return;
    }
    println!("{:<10} {:>13} {:>12}  at most", "case", "instructions", "allocations");
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let bar = match &row["bar"] {
            Value::Array(bar) => format!("{}, {}", bar[0], bar[1]),
            _ => "-".to_owned(),
        };
        println!(
            "{:<10} {:>13} {:>12.1}  {bar}",
            row["case"].as_str().unwrap_or_default(),
            number("instructions_per_request"),
            number("allocations_per_request"),
        );
    }
}

/// What each thread of the proxy did for `requests`, from its start to its end.
fn threads(case: Case, upstream: SocketAddr, requests: u64) -> Outcome<BTreeMap<u32, Count>> {
    let name = format!("tidegate-counts-{}-{}-{requests}", std::process::id(), case.name());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory)?;
    let counted = under_callgrind(case, upstream, requests, &directory);
    let read = counted.and_then(|()| read(&directory));
    let _ = std::fs::remove_dir_all(&directory);
    read
}

fn under_callgrind(case: Case, upstream: SocketAddr, requests: u64, directory: &Path) -> Outcome {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--separate-threads=yes", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", directory.join("out").display()))
        .arg(std::env::current_exe()?)
        .args(["proxy-server", &address.to_string(), &upstream.to_string()])
        .arg(if case.refuses() { "--refuse" } else { "--dark" })
        .args(case.is_http2_behind().then_some("--http2"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let proxy = Killed(command.spawn().map_err(|error| format!("valgrind: {error}"))?);
    for _ in 0..3_000 {
        if TcpStream::connect(address).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut load = Command::new("h2load");
    load.arg(format!("-n{requests}"));
    load.args(if case.is_http2() { &["-t1", "-c8", "-m8"][..] } else { &["-t1", "-c64", "--h1"] });
    let url = format!("http://{address}{}", case.path());
    let output = load.arg(url).output().map_err(|error| format!("h2load: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains(&format!("{requests} done")) {
        return Err(format!("not everything was answered: {text}").into());
    }
    proxy.end()
}

/// A process that does not outlive us.
struct Killed(Child);

impl Killed {
    /// Asks it to end, and waits until it has.
    fn end(mut self) -> Outcome {
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Callgrind writes a file for each thread, `out-01` and on.
fn read(directory: &Path) -> Outcome<BTreeMap<u32, Count>> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("out-")?.parse().ok());
        if let Some(thread) = number {
            threads.insert(thread, parse(&std::fs::read_to_string(entry.path())?));
        }
    }
    Ok(threads)
}

/// Whether `function` is the allocator's.
fn allocates(function: &str) -> bool {
    function.starts_with("mi_") || function.starts_with("_mi_")
}

fn parse(text: &str) -> Count {
    let mut count = Count::default();
    let (mut within, mut called) = ("", "");
    for line in text.lines() {
        if let Some(total) =
            line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: "))
        {
            count.instructions = total.trim().parse().unwrap_or(count.instructions);
        } else if let Some(function) = line.strip_prefix("fn=") {
            within = function;
            count.serves |= function.contains("hyper::proto::");
        } else if let Some(function) = line.strip_prefix("cfn=") {
            called = function;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let gives = ["mi_malloc", "mi_zalloc", "mi_realloc", "mi_calloc"];
            if !allocates(within) && gives.iter().any(|name| called.starts_with(name)) {
                let calls = calls.split(' ').next().and_then(|calls| calls.parse::<u64>().ok());
                count.allocations += calls.unwrap_or(0);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_allocator_count_where_they_come_from_outside() {
        let text = "\
events: Ir
fn=serve
12 100
cfn=mi_malloc_aligned
calls=7 0x40
12 900
cfn=mi_free
calls=7 0x50
12 70
fn=mi_malloc_aligned
cfn=mi_malloc
calls=7 0x60
3 500
fn=grow
cfn=mi_realloc_aligned
calls=2 0x70
9 80
totals: 4711
";
        let counted = Count { instructions: 4_711, allocations: 9, serves: false };
        assert_eq!(parse(text), counted);
        let serving = format!("fn=hyper::proto::h1::Conn::poll\n1 2\n{text}");
        assert_eq!(parse(&serving), Count { serves: true, ..counted });
        assert_eq!(parse(""), Count::default());
    }
}
