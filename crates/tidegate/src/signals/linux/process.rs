//! What `/proc` says about processes and threads.

use super::files::{Files, Text, Unknown};
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `/proc` counts CPU time in hundredths of a second, whatever the kernel ticks at: it is part of
/// its interface.
const TICK_MILLIS: u64 = 10;

/// At some 4 µs a thread, this many take 2 ms. The threads of a runtime are among the first, and
/// what a pool of thousands waits for is not what requests wait for.
const THREADS_MAX: usize = 512;

/// The CPU time of a process in `/proc/PID/stat`, also of threads that have ended, and when it was
/// started.
pub(super) fn cpu_time(stat: &Text) -> Result<(Duration, u64), Unknown> {
    let malformed = || stat.malformed("the state of a process");
    // The name of the program comes second, in parentheses, and may hold any of both.
    let (_, fields) = stat.as_str().rsplit_once(')').ok_or_else(malformed)?;
    // After the name, the third field is the first.
    let field = |number: usize| -> Option<u64> {
        fields.split_ascii_whitespace().nth(number - 3)?.parse().ok()
    };
    let (user, system) = field(14).zip(field(15)).ok_or_else(malformed)?;
    let start = field(22).ok_or_else(malformed)?;
    let ticks = user.saturating_add(system);
    Ok((Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)), start))
}

/// How many CPUs a list such as `0-3,8` names.
pub(super) fn count_cpus(list: &str) -> Option<u32> {
    let mut count = 0_u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The value of the line `key: value` in a text.
pub(super) fn line<'a>(text: &'a Text, key: &str) -> Option<&'a str> {
    text.as_str().lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name == key).then_some(value.trim())
    })
}

/// The time that threads have waited for a CPU, added up as they come and go.
///
/// The kernel counts for each thread, and a thread's count goes with it: a plain sum would fall
/// whenever one ends. What grows between two looks is added up instead. What a thread waits between
/// the last look and its end is lost.
#[derive(Debug, Clone, Default)]
pub(super) struct RunDelay {
    seen: BTreeMap<u32, u64>,
    begun: bool,
    total: Duration,
}

impl RunDelay {
    pub(super) fn record(&mut self, threads: &[(u32, u64)]) -> Duration {
        let mut seen = BTreeMap::new();
        for &(thread, delay) in threads {
            // A number that is lower than before is that of another thread.
            let before = self.seen.get(&thread).copied().filter(|before| *before <= delay);
            // What it has waited before the first look was seen by nobody; a thread that has come
            // since has waited since.
            let new = if self.begun { delay - before.unwrap_or(0) } else { 0 };
            self.total = self.total.saturating_add(Duration::from_nanos(new));
            seen.insert(thread, delay);
        }
        self.seen = seen;
        self.begun = true;
        self.total
    }
}

/// For each of the threads, whose files are where `path` says: the nanoseconds that it has waited
/// for a CPU.
pub(super) fn delays(
    files: &Files,
    threads: &[u32],
    path: impl Fn(u32) -> PathBuf,
) -> Result<Vec<(u32, u64)>, Unknown> {
    let mut delays = Vec::with_capacity(threads.len().min(THREADS_MAX));
    let mut counted = false;
    for &thread in threads.iter().take(THREADS_MAX) {
        // Between the list and the look a thread may end.
        let Some(text) = files.read_again_if_there(path(thread))? else { continue };
        let mut fields = text.as_str().split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(ran)), Some(Ok(delay))) = (fields.next(), fields.next()) else {
            return Err(text.malformed("the times that a thread ran and waited"));
        };
        counted |= ran > 0 || delay > 0;
        delays.push((thread, delay));
    }
    // A kernel that does not count says zero, and that is not the same as nobody waiting.
    let what = "count of the time that threads wait for a CPU";
    if counted { Ok(delays) } else { Err(Unknown::Absent { what }) }
}

/// The threads in a directory `task`.
pub(super) fn threads(files: &Files, task: &Path) -> Result<Vec<u32>, Unknown> {
    let mut threads = files.numbers_in(task, usize::MAX)?;
    threads.sort_unstable();
    Ok(threads)
}

/// Microseconds in which somebody waited, in a file of pressure.
pub(super) fn pressure(text: &Text) -> Result<Duration, Unknown> {
    let some = text.as_str().lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|some| {
        some.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))
    });
    let micros = total.and_then(|total| total.parse().ok());
    micros.map(Duration::from_micros).ok_or_else(|| text.malformed("`some ... total=MICROSECONDS`"))
}
