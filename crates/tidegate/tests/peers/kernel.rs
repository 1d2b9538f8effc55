//! Control groups of a real kernel.
//!
//! What is read of limits is tested on trees of files that look like a kernel's. Here a kernel
//! writes them: Debian's user-mode Linux, a program that boots in three seconds and may do inside
//! of itself what only root may do outside. It sees the machine's files, read-only, and its first
//! process runs this very test again, which then makes groups, enters them, reads what they allow
//! and burns CPU until it is held up.
//!
//! It has one CPU. So a quota of 1.5 CPUs is read as what it is, and one CPU is what is left of it.

use super::peer::Peers;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tidegate::signals::Signal;
use tidegate::signals::linux::{Reader, Throttled};
use tidegate_core::Timestamp;

/// Where the test runs: not set outside of the kernel.
const PLACE: &str = "TIDEGATE_IN_KERNEL";
const NAME: &str = "kernel::limits_of_control_groups_are_read_from_a_real_kernel";
const GROUPS: &str = "/sys/fs/cgroup";
const MIB: u64 = 1024 * 1024;

#[test]
fn limits_of_control_groups_are_read_from_a_real_kernel() {
    match std::env::var(PLACE).as_deref() {
        Ok("machine") => on_the_machine(),
        Ok("container") => in_a_container(),
        _ if Peers::find().is_some() => boot(),
        _ => {}
    }
}

/// Runs this test as a process of the kernel.
fn boot() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers/kernel");
    fs::create_dir_all(&directory).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/xstate.c");
    let (shim, first) = (directory.join("xstate.so"), directory.join("first.sh"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&shim).arg(&source);
    assert!(compiler.status().unwrap().success(), "{} cannot be compiled", source.display());
    let test = std::env::current_exe().unwrap();
    let script = format!(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin {PLACE}=machine\n\
         mount -t proc proc /proc && mount -t sysfs sysfs /sys\n\
         mount -t cgroup2 cgroup2 {GROUPS}\n\
         '{}' --exact {NAME} --nocapture\n\
         echo o > /proc/sysrq-trigger\n\
         sleep 60\n",
        test.display(),
    );
    fs::write(&first, script).unwrap();
    // Tests that hang are ended, and what they have started should be, too.
    let mut kernel = Command::new("timeout");
    kernel.args(["--signal", "KILL", "100", "linux.uml", "mem=256M", "quiet"]);
    kernel.args(["rootfstype=hostfs", "root=/dev/root", "ro", "con=null", "con0=null,fd:1"]);
    kernel.arg(format!("uml_dir={}", directory.display()));
    kernel.args(["init=/bin/sh", "--"]).arg(&first);
    kernel.env("LD_PRELOAD", &shim).stdin(Stdio::null());
    let output = kernel.output().expect("`timeout` of coreutils");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    let good = said.contains("test result: ok. 1 passed");
    assert!(good, "the test has failed inside of the kernel:\n{said}\n{complaint}");
}

/// A group that this process can enter.
struct Group(PathBuf);

impl Group {
    fn new(path: &str, cpus: &str, memory: &str) -> Self {
        let group = Self(Path::new(GROUPS).join(path));
        let above = group.0.parent().unwrap();
        fs::write(above.join("cgroup.subtree_control"), "+cpu +memory").unwrap();
        fs::create_dir(&group.0).unwrap();
        group.write("cpu.max", cpus);
        group.write("memory.max", memory);
        group
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn enter(&self) {
        self.write("cgroup.procs", "0");
    }
}

/// How many CPUs a process may use here, by its quota and at all, and how much memory.
fn limits() -> (Option<f64>, f64, u64) {
    let mut reader = Reader::default();
    let cpus = reader.cpus().unwrap();
    assert_eq!((cpus.affinity, &cpus.trouble), (1, &None));
    let memory = reader.memory().unwrap();
    assert!(memory.used > 0 && memory.used <= memory.reserved, "{memory:?}");
    (cpus.quota, cpus.cpus, memory.reserved)
}

/// Works until it was held up three times more, and returns what share of time it was.
fn work_until_throttled() -> f64 {
    let mut reader = Reader::default();
    let mut signal = Throttled::new(Reader::default());
    let (start, before) = (Instant::now(), reader.throttling().unwrap().expect("a quota"));
    assert!(signal.sample(Timestamp::ZERO).is_none_or(|share| share.get() == 0.0));
    loop {
        for n in 0..100_000_u64 {
            black_box(n);
        }
        let now = reader.throttling().unwrap().expect("a quota");
        assert!(now.periods >= before.periods && now.time >= before.time, "{before:?} {now:?}");
        if now.throttled >= before.throttled + 3 {
            assert!(now.periods > before.periods && now.time > before.time, "{before:?} {now:?}");
            let at = Timestamp::ZERO + start.elapsed();
            return signal.sample(at).expect("it is known").get();
        }
    }
}

fn on_the_machine() {
    // At the root nothing is limited but by the machine.
    let (quota, cpus, memory) = limits();
    assert_eq!((quota, cpus, Reader::default().throttling()), (None, 1.0, Ok(None)));
    assert!(memory > 128 * MIB, "{memory}");

    let half = Group::new("half", "50000 100000", "64M");
    half.enter();
    assert_eq!(limits(), (Some(0.5), 0.5, 64 * MIB));
    let share = work_until_throttled();
    assert!(share > 0.0, "{share}");
    // Limits that change are seen by whoever looks again.
    let mut reader = Reader::default();
    half.write("cpu.max", "25000 100000");
    half.write("memory.max", "96M");
    assert_eq!(reader.cpus().unwrap().quota, Some(0.25));
    assert_eq!(reader.memory().unwrap().reserved, 96 * MIB);
    half.write("cpu.max", "max 100000");
    assert_eq!(reader.cpus().unwrap().quota, None);
    half.write("cpu.max", "50000 100000");

    // The tightest of all groups around it counts, wherever it is.
    let outer = Group::new("outer", "150000 100000", "112M");
    let inner = Group::new("outer/inner", "max 100000", "max");
    inner.enter();
    assert_eq!(limits(), (Some(1.5), 1.0, 112 * MIB));
    inner.write("cpu.max", "75000 100000");
    inner.write("memory.max", "80M");
    assert_eq!(limits(), (Some(0.75), 0.75, 80 * MIB));
    outer.write("cpu.max", "25000 100000");
    assert_eq!(limits(), (Some(0.25), 0.25, 80 * MIB));
    let share = work_until_throttled();
    assert!(share > 0.0, "held up by the outer one: {share}");

    // A container sees its own group as the root.
    half.write("memory.max", "64M");
    half.enter();
    let container = format!(
        "cd / && umount {GROUPS} && mount -t cgroup2 cgroup2 {GROUPS} && \
         exec env {PLACE}=container \"$0\" --exact {NAME} --nocapture",
    );
    let test = std::env::current_exe().unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--cgroup", "--mount", "sh", "-c", &container]).arg(test);
    let output = unshare.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn in_a_container() {
    assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap().trim(), "0::/");
    assert_eq!(limits(), (Some(0.5), 0.5, 64 * MIB));
    let share = work_until_throttled();
    assert!(share > 0.0, "{share}");
}
