//! What control groups allow and have used.
//!
//! A limit holds for a group and everything below it, so every level from the group up to the mount
//! is looked at: the tightest CPU quota counts, and for memory the level that is closest to its
//! limit. Levels above the mount are hidden in a container and cannot be known.

use super::files::{Files, Text, Unknown};
use super::mounts::{Membership, Mount, Place, Version, place, unified};
use core::time::Duration;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the most that fits, which depends on the size of a page.
const UNLIMITED: u64 = 1 << 62;

/// Where the controllers of a group are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Groups {
    cpu: Option<Place>,
    cpuacct: Option<Place>,
    cpuset: Option<Place>,
    memory: Option<Place>,
    unified: Option<Place>,
}

/// How often a group was held up by its quota, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Throttling {
    /// Periods in which it wanted to run.
    pub periods: u64,
    /// Those in which it used up its quota.
    pub throttled: u64,
    /// How long it stood still, summed over CPUs.
    pub time: Duration,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// In use, without what the kernel would give back at once.
    pub used: u64,
    /// What there is.
    pub reserved: u64,
}

impl Memory {
    pub(super) const fn new(used: u64, reserved: u64) -> Self {
        Self { used, reserved }
    }

    /// Used over reserved.
    pub fn utilization(&self) -> f64 {
        self.used as f64 / self.reserved.max(1) as f64
    }
}

/// A quota, and the level that has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quota {
    pub(super) cpus: f64,
    level: PathBuf,
}

impl Groups {
    pub(super) fn find(mounts: &[Mount], members: &[Membership], files: &Files) -> Self {
        let place = |controller| place(controller, mounts, members, files);
        Self {
            cpu: place("cpu"),
            cpuacct: place("cpuacct"),
            cpuset: place("cpuset"),
            memory: place("memory"),
            unified: unified(mounts, members, files),
        }
    }

    /// The tightest quota; nothing if there is none.
    pub(super) fn quota(&self, files: &Files) -> Result<Option<Quota>, Unknown> {
        let Some(place) = &self.cpu else { return Ok(None) };
        present(place, files)?;
        let mut tightest: Option<Quota> = None;
        for level in place.levels() {
            let cpus = match place.version {
                Version::V2 => quota_v2(files, level)?,
                Version::V1 => quota_v1(files, level)?,
            };
            if let Some(cpus) = cpus
                && tightest.as_ref().is_none_or(|quota| cpus < quota.cpus)
            {
                tightest = Some(Quota { cpus, level: level.to_owned() });
            }
        }
        Ok(tightest)
    }

    /// How often the group was held up at the level of its tightest quota; nothing without a quota.
    pub(super) fn throttling(&self, files: &Files) -> Result<Option<Throttling>, Unknown> {
        let (Some(place), Some(quota)) = (&self.cpu, self.quota(files)?) else { return Ok(None) };
        let stat = files.read(quota.level.join("cpu.stat"))?;
        let time = match place.version {
            Version::V2 => Duration::from_micros(stat.field("throttled_usec")?),
            Version::V1 => Duration::from_nanos(stat.field("throttled_time")?),
        };
        let (periods, throttled) = (stat.field("nr_periods")?, stat.field("nr_throttled")?);
        Ok(Some(Throttling { periods, throttled, time }))
    }

    /// CPU time that the group has used.
    pub(super) fn cpu_time(&self, files: &Files) -> Result<Duration, Unknown> {
        match &self.cpuacct {
            Some(Place { version: Version::V1, directory, .. }) => {
                let usage = files.read(directory.join("cpuacct.usage"))?;
                Ok(Duration::from_nanos(usage.number()?))
            }
            Some(Place { version: Version::V2, directory, .. }) => {
                let stat = files.read(directory.join("cpu.stat"))?;
                Ok(Duration::from_micros(stat.field("usage_usec")?))
            }
            None => Err(Unknown::Absent { what: "control group that counts CPU time" }),
        }
    }

    /// The CPUs that the group may run on, as the kernel lists them; nothing if it does not say.
    pub(super) fn cpu_list(&self, files: &Files) -> Result<Option<Text>, Unknown> {
        let Some(place) = &self.cpuset else { return Ok(None) };
        for name in ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"] {
            if let Some(list) = files.read_if_there(place.directory.join(name))?
                && !list.as_str().trim().is_empty()
            {
                return Ok(Some(list));
            }
        }
        Ok(None)
    }

    /// Memory at the level that is closest to its limit, where no limit is above `total`. Nothing
    /// if there is no limit.
    pub(super) fn memory(&self, files: &Files, total: u64) -> Result<Option<Memory>, Unknown> {
        let Some(place) = &self.memory else { return Ok(None) };
        present(place, files)?;
        let mut fullest: Option<Memory> = None;
        for level in place.levels() {
            let Some(limit) = memory_limit(files, place.version, level)? else { continue };
            let used = memory_used(files, place.version, level)?;
            let memory = Memory::new(used, limit.min(total));
            if fullest.is_none_or(|other| memory.utilization() > other.utilization()) {
                fullest = Some(memory);
            }
        }
        Ok(fullest)
    }

    /// What the group itself uses.
    pub(super) fn memory_used(&self, files: &Files) -> Result<u64, Unknown> {
        let what = "control group that counts memory";
        let place = self.memory.as_ref().ok_or(Unknown::Absent { what })?;
        memory_used(files, place.version, &place.directory)
    }

    /// The group's own file of CPU pressure, if it has one.
    pub(super) fn pressure(&self, files: &Files) -> Option<PathBuf> {
        let path = self.unified.as_ref()?.directory.join("cpu.pressure");
        // It may be there and refuse to be read, where the kernel was told not to keep it.
        files.read(&path).ok().map(|_| path)
    }

    /// The threads in the group itself, as the kernel lists them.
    pub(super) fn threads(&self, files: &Files) -> Result<Text, Unknown> {
        let place = self.cpu.as_ref().or(self.unified.as_ref());
        let place = place.ok_or(Unknown::Absent { what: "control group" })?;
        let name = match place.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        };
        files.read(place.directory.join(name))
    }
}

/// Without its directory a group has no files, which is not the same as having no limits.
fn present(place: &Place, files: &Files) -> Result<(), Unknown> {
    if files.exists(&place.directory) {
        return Ok(());
    }
    let kind = std::io::ErrorKind::NotFound;
    Err(Unknown::Unreadable { path: place.directory.clone(), kind })
}

/// `max 100000` or `150000 100000`: microseconds of CPU in each so many.
fn quota_v2(files: &Files, level: &Path) -> Result<Option<f64>, Unknown> {
    let Some(max) = files.read_if_there(level.join("cpu.max"))? else { return Ok(None) };
    let malformed = || max.malformed("a quota and a period in microseconds");
    let (quota, period) = max.as_str().trim().split_once(' ').ok_or_else(malformed)?;
    let period: u64 = period.trim().parse().map_err(|_| malformed())?;
    if quota == "max" {
        return Ok(None);
    }
    cpus(quota.parse().map_err(|_| malformed())?, period).ok_or_else(malformed).map(Some)
}

fn quota_v1(files: &Files, level: &Path) -> Result<Option<f64>, Unknown> {
    let Some(quota) = files.read_if_there(level.join("cpu.cfs_quota_us"))? else {
        return Ok(None);
    };
    let microseconds: i64 = quota.number()?;
    // -1 is none.
    let Ok(microseconds) = u64::try_from(microseconds) else { return Ok(None) };
    let period = files.read(level.join("cpu.cfs_period_us"))?;
    let wanted = "a period of more than zero microseconds, with a quota of more than zero";
    cpus(microseconds, period.number()?).ok_or_else(|| period.malformed(wanted)).map(Some)
}

fn cpus(quota: u64, period: u64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// The limit of one level; nothing if it has none.
fn memory_limit(files: &Files, version: Version, level: &Path) -> Result<Option<u64>, Unknown> {
    // Above `memory.high` the kernel slows a group down rather than kill it, which is no better.
    let names: &[&str] = match version {
        Version::V2 => &["memory.max", "memory.high"],
        Version::V1 => &["memory.limit_in_bytes"],
    };
    let mut lowest: Option<u64> = None;
    for name in names {
        let Some(text) = files.read_if_there(level.join(name))? else { continue };
        let limit = match text.as_str().trim() {
            "max" | "-1" => continue,
            _ => text.number::<u64>()?,
        };
        if limit == 0 {
            return Err(text.malformed("a limit of more than zero bytes"));
        }
        if limit < UNLIMITED {
            lowest = Some(lowest.map_or(limit, |lowest| lowest.min(limit)));
        }
    }
    Ok(lowest)
}

/// What a level uses, without the file pages that nobody has used lately: the kernel takes those
/// back before it kills anybody.
fn memory_used(files: &Files, version: Version, level: &Path) -> Result<u64, Unknown> {
    let (usage, inactive) = match version {
        Version::V2 => ("memory.current", "inactive_file"),
        Version::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
    };
    let usage: u64 = files.read(level.join(usage))?.number()?;
    let inactive = files.read(level.join("memory.stat"))?.field(inactive)?;
    Ok(usage.saturating_sub(inactive))
}
