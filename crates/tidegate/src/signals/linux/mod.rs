//! What Linux knows about a process or a control group.
//!
//! How many CPUs it may use (a fraction, with a quota), how much CPU time and memory it has used of
//! what it may, how long its threads waited for a CPU, and how often its quota held it up. All of
//! it comes from small files under `/proc` and from those of control groups, versions 1 and 2 and
//! the two mixed (see `mounts` for how they are found).
//!
//! Files are missing in one kernel, unreadable in the next container, and vanish with what they
//! describe. Whatever cannot be read is [`Unknown`] and says why: never a panic, and never the zero
//! of an idle machine. Every function reads below a root, so that tests bring their own machine.
//!
//! A [`Reader`] looks at the process itself or at another one ([`Target`]): the proxy watches what
//! it stands in front of.

mod files;
mod groups;
mod mounts;
mod process;
mod sources;
#[cfg(test)]
mod tests;

pub use files::Unknown;
pub use groups::{Memory, Throttling};
pub use sources::{CpuTime, MemoryUse, Pressure, RunDelay, Throttled, all};

use core::time::Duration;
use files::Files;
use groups::Groups;
use process::{count_cpus, line};
use std::path::{Path, PathBuf};

/// Whom to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Target {
    /// The process that asks.
    #[default]
    SelfProcess,
    /// Another process, by its number as this one sees it.
    Pid(u32),
    /// A control group by its name, as it stands in `/proc/PID/cgroup`: `/system.slice/x.service`.
    Cgroup(PathBuf),
}

/// How many CPUs there are to use.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Cpus {
    /// The lower of the two below.
    pub cpus: f64,
    /// CPUs that it may run on.
    pub affinity: u32,
    /// CPU time per time that its control groups allow it, if they limit it.
    pub quota: Option<f64>,
    /// Why its quota is not known, in which case it counts as none.
    pub trouble: Option<Unknown>,
}

impl Cpus {
    /// The CPUs, if everything about them is known.
    pub fn certain(self) -> Result<f64, Unknown> {
        self.trouble.map_or(Ok(self.cpus), Err)
    }
}

/// Reads the files of a process or a control group.
#[derive(Debug, Clone)]
pub struct Reader {
    files: Files,
    target: Target,
    groups: Groups,
    /// The file to read CPU pressure from. It stays the same, since the counters of two files
    /// differ.
    pressure: PathBuf,
    /// When the process was started, to tell it from a later one of the same number.
    start: Option<u64>,
    delay: process::RunDelay,
    /// How often the groups were found elsewhere: counters from before mean nothing any more.
    moves: u64,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(Target::SelfProcess)
    }
}

impl Reader {
    /// Looks at `target`.
    pub fn new(target: Target) -> Self {
        Self::below("/", target)
    }

    /// Looks at `target` on a machine whose files are below `root`.
    pub fn below(root: impl Into<PathBuf>, target: Target) -> Self {
        let mut reader = Self {
            files: Files::new(root),
            target,
            groups: Groups::default(),
            pressure: PathBuf::new(),
            start: None,
            delay: process::RunDelay::default(),
            moves: 0,
        };
        reader.find_groups();
        reader
    }

    /// Whom it looks at.
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// How often the target was found in another control group than before.
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// Finds the control groups. Returns whether they have changed.
    fn find_groups(&mut self) -> bool {
        let members = match &self.target {
            Target::Cgroup(path) => mounts::named(path),
            _ => match self.files.read(self.proc("cgroup")) {
                Ok(text) => mounts::memberships(text.as_str()),
                Err(_) => Vec::new(),
            },
        };
        // Where *we* find them, so it is our mounts that count.
        let mounts = self
            .files
            .read("/proc/self/mountinfo")
            .map_or_else(|_| Vec::new(), |text| mounts::mounts(text.as_str()));
        let groups = Groups::find(&mounts, &members, &self.files);
        let pressure = groups.pressure(&self.files);
        self.pressure = pressure.unwrap_or_else(|| PathBuf::from("/proc/pressure/cpu"));
        let changed = groups != self.groups;
        self.groups = groups;
        changed
    }

    /// Asks the groups; if they cannot answer, looks whether the target has gone to other ones.
    fn ask<T>(
        &mut self,
        question: impl Fn(&Groups, &Files) -> Result<T, Unknown>,
    ) -> Result<T, Unknown> {
        let answer = question(&self.groups, &self.files);
        if answer.is_err() && self.find_groups() {
            self.moves += 1;
            return question(&self.groups, &self.files);
        }
        answer
    }

    /// The path of a file in the directory of the process.
    fn proc(&self, name: &str) -> PathBuf {
        match self.target {
            Target::Pid(pid) => PathBuf::from(format!("/proc/{pid}/{name}")),
            _ => PathBuf::from(format!("/proc/self/{name}")),
        }
    }

    const fn is_group(&self) -> bool {
        matches!(self.target, Target::Cgroup(_))
    }

    /// How many CPUs there are for it: those that it may run on, or what its quotas allow if that
    /// is less. `available_parallelism` says 1 for a quota of 1.5.
    pub fn cpus(&mut self) -> Result<Cpus, Unknown> {
        let affinity = self.affinity()?;
        let quota = self.ask(Groups::quota);
        let trouble = quota.as_ref().err().cloned();
        let quota = quota.ok().flatten().map(|quota| quota.cpus);
        let cpus = quota.map_or(f64::from(affinity), |quota| quota.min(f64::from(affinity)));
        Ok(Cpus { cpus, affinity, quota, trouble })
    }

    fn affinity(&mut self) -> Result<u32, Unknown> {
        let wanted = "a list of CPUs such as 0-3,8";
        if self.is_group() {
            if let Some(list) = self.ask(Groups::cpu_list)? {
                let count = count_cpus(list.as_str()).filter(|count| *count > 0);
                return count.ok_or_else(|| list.malformed(wanted));
            }
            let online = self.files.read("/sys/devices/system/cpu/online")?;
            return count_cpus(online.as_str()).ok_or_else(|| online.malformed(wanted));
        }
        let status = self.files.read(self.proc("status"))?;
        let count = line(&status, "Cpus_allowed_list").and_then(count_cpus);
        count.filter(|count| *count > 0).ok_or_else(|| status.malformed("Cpus_allowed_list"))
    }

    /// CPU time that it has used so far.
    pub fn cpu_time(&mut self) -> Result<Duration, Unknown> {
        match self.target {
            Target::Cgroup(_) => self.ask(Groups::cpu_time),
            Target::SelfProcess if self.files.is_system() => own_cpu_time(),
            _ => self.stat(),
        }
    }

    fn stat(&mut self) -> Result<Duration, Unknown> {
        let (time, start) = process::cpu_time(&self.files.read_again(self.proc("stat"))?)?;
        match (&self.target, self.start.replace(start)) {
            (&Target::Pid(pid), Some(before)) if before != start => {
                self.start = Some(before);
                Err(Unknown::Replaced { pid })
            }
            _ => Ok(time),
        }
    }

    /// Memory used, of what there is: by its control group where that has a limit (as it is the
    /// group that runs out), else by the process, of the memory of the machine.
    pub fn memory(&mut self) -> Result<Memory, Unknown> {
        let total = self.memory_total()?;
        if let Some(memory) = self.ask(|groups, files| groups.memory(files, total))? {
            return Ok(memory);
        }
        Ok(Memory::new(self.memory_used()?, total))
    }

    /// Memory that the process, or the group, uses itself.
    pub fn memory_used(&mut self) -> Result<u64, Unknown> {
        if self.is_group() {
            return self.ask(Groups::memory_used);
        }
        Ok(self.files.read(self.proc("status"))?.field("VmRSS")?.saturating_mul(1024))
    }

    fn memory_total(&self) -> Result<u64, Unknown> {
        let text = self.files.read("/proc/meminfo")?;
        match text.field("MemTotal")? {
            0 => Err(text.malformed("a MemTotal of more than zero")),
            kilobytes => Ok(kilobytes.saturating_mul(1024)),
        }
    }

    /// How long its threads have waited for a CPU while they could have run, since they were first
    /// looked at: all of them, added up. Of more than 512 threads the rest is left out.
    pub fn run_delay(&mut self) -> Result<Duration, Unknown> {
        let delays = if self.is_group() {
            let threads = self.ask(Groups::threads)?;
            let threads: Vec<u32> =
                threads.as_str().lines().filter_map(|line| line.trim().parse().ok()).collect();
            let path = |thread| PathBuf::from(format!("/proc/{thread}/schedstat"));
            process::delays(&self.files, &threads, path)?
        } else {
            let task = self.proc("task");
            let threads = process::threads(&self.files, &task)?;
            let path = |thread: u32| task.join(thread.to_string()).join("schedstat");
            process::delays(&self.files, &threads, path)?
        };
        Ok(self.delay.record(&delays))
    }

    /// For how long some thread of its group (of the machine, where groups do not tell) has waited
    /// for a CPU, so far.
    pub fn pressure(&mut self) -> Result<Duration, Unknown> {
        process::pressure(&self.files.read_again(&self.pressure)?)
    }

    /// Where [`Reader::pressure`] is read.
    pub fn pressure_file(&self) -> &Path {
        &self.pressure
    }

    /// How often its tightest quota has held it up so far; nothing without a quota.
    pub fn throttling(&mut self) -> Result<Option<Throttling>, Unknown> {
        self.ask(Groups::throttling)
    }
}

/// A system call that is exact, where the file counts hundredths of a second.
#[cfg(target_os = "linux")]
fn own_cpu_time() -> Result<Duration, Unknown> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).map_err(|_| Unknown::Absent { what: "clock of CPU time" })
}

#[cfg(not(target_os = "linux"))]
fn own_cpu_time() -> Result<Duration, Unknown> {
    Err(Unknown::Absent { what: "clock of CPU time" })
}
