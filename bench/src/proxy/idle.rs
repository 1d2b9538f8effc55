//! What connections take that nobody uses.
//!
//! The proxy is a process, the cheap server behind it another, and those who connect a third, so
//! that each has descriptors of its own. Memory is what the kernel has given the proxy (`VmRSS`):
//! before anybody came, with all connections open, and after each has made one request and was idle
//! for a while. The most that it ever had stands beside it (`VmHWM`).
//!
//! ```sh
//! cargo run --release -p tidegate-bench -- proxy --idle
//! ```

use super::crowd::Crowd;
use crate::Outcome;
use crate::load::Server;
use crate::peers::{Peer, Running, Told};
use serde_json::{Value, json};
use std::time::Duration;

/// What there may be for ten thousand.
const BAR_KIB: f64 = 150.0 * 1024.0 / 10_000.0;

/// It looks so often, until nothing has changed for so many looks: longer than connections take to
/// be put to rest, and an allocator to give back what is free.
const LOOK: Duration = Duration::from_millis(250);
const STILL: u32 = 16;
/// And does not look for longer than this.
const LOOKS_MAX: u32 = 240;

pub(super) fn run(count: usize, as_json: bool) -> Outcome {
    let mut rows = Vec::new();
    for http2 in [false, true] {
        rows.push(measure(count, http2)?);
    }
    if as_json {
        println!("{}", json!({ "rows": rows }));
        return Ok(());
    }
    println!(
        "{:<9} {:>11} {:>9} {:>11} {:>14} {:>11} {:>16}",
        "protocol",
        "connections",
        "none, MiB",
        "fresh, MiB",
        "after use, MiB",
        "peak, MiB",
        "each after, KiB"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<9} {:>11} {:>9.1} {:>11.1} {:>14.1} {:>11.1} {:>16.1}",
            row["protocol"].as_str().unwrap_or_default(),
            number("connections"),
            number("none_mib"),
            number("fresh_mib"),
            number("used_mib"),
            number("peak_mib"),
            number("used_kib_each"),
        );
    }
    println!("at most {BAR_KIB:.1} KiB each, of all that the process has");
    Ok(())
}

fn measure(count: usize, http2: bool) -> Outcome<Value> {
    let server = Server::start(None)?;
    let program = Peer::Tidegate.found().ok_or("no program")?;
    let running = Running::start(Peer::Tidegate, &program, Some(0), |address, _| {
        let upstream = server.address.to_string();
        let words = ["proxy-server", &address.to_string(), &upstream, "--dark", "--crowd"];
        Told::Arguments(words.map(str::to_owned).to_vec())
    })?;
    let none = settled(&running)?;
    let mut crowd = Crowd::start(running.address, count, http2)?;
    let fresh = settled(&running)?;
    crowd.tell("ask")?;
    let asked = crowd.answer()?;
    let used = settled(&running)?;
    let peak = running.memory("VmHWM")?;
    let open = crowd.open as f64;
    Ok(json!({
        "protocol": if http2 { "h2" } else { "h1" },
        "connections": crowd.open,
        "answers": asked["statuses"],
        "none_mib": none / 1024.0,
        "fresh_mib": fresh / 1024.0,
        "used_mib": used / 1024.0,
        "peak_mib": peak / 1024.0,
        "fresh_kib_each": fresh / open,
        "used_kib_each": used / open,
        "bar_kib_each": BAR_KIB,
        "within_bar": fresh.max(used) / open <= BAR_KIB,
    }))
}

/// KiB, when they have come to rest.
fn settled(running: &Running) -> Outcome<f64> {
    let mut last = running.memory("VmRSS")?;
    let mut still = 0;
    for _ in 0..LOOKS_MAX {
        std::thread::sleep(LOOK);
        let now = running.memory("VmRSS")?;
        // A page or two come and go by themselves.
        still = if (now - last).abs() < 64.0 { still + 1 } else { 0 };
        last = now;
        if still == STILL {
            break;
        }
    }
    Ok(last)
}
