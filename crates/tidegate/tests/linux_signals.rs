//! What is read from machines of all kinds: trees of files, and the one that this runs on.
#![allow(clippy::unwrap_used, clippy::too_many_lines)]

use core::time::Duration;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tidegate::signals::Signal;
use tidegate::signals::linux::{self, Memory, Reader, Target, Throttling, Unknown};
use tidegate_core::{Timestamp, Utilization};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// A machine in a directory of its own.
struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The common files, and those of `layout`. `test` names the directory.
    fn new(layout: &str, test: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{layout}"));
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        let machine = Self { root };
        machine.unpack("common");
        machine.unpack(layout);
        machine
    }

    fn unpack(&self, name: &str) {
        let tree = format!("{}/tests/fixtures/{name}.tree", env!("CARGO_MANIFEST_DIR"));
        let tree = fs::read_to_string(&tree).unwrap_or_else(|error| panic!("{tree}: {error}"));
        for file in tree.split("\n== ").skip(1) {
            let (path, text) = file.split_once('\n').unwrap_or((file, ""));
            self.write(path, text);
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.strip_prefix('/').unwrap())
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    fn reader(&self, target: Target) -> Reader {
        Reader::below(&self.root, target)
    }
}

/// What a layout should read as.
struct Expected {
    layout: &'static str,
    target: Target,
    cpus: f64,
    quota: Option<f64>,
    cpu_time: Duration,
    memory: (f64, f64),
    throttled: Option<(u64, u64, Duration)>,
    pressure: Duration,
}

#[test]
fn every_layout_by_the_table() {
    let millis = Duration::from_millis;
    // 1200 + 34 hundredths of a second.
    let process = millis(12_340);
    let machine_pressure = Duration::from_secs(7);
    let rss = (4.0 * GIB, 16.0 * GIB);
    let table = [
        Expected {
            layout: "bare-metal-v2",
            target: Target::SelfProcess,
            cpus: 1.5,
            quota: Some(1.5),
            cpu_time: process,
            memory: (GIB, 2.0 * GIB),
            throttled: Some((1_000, 250, millis(4_500))),
            pressure: millis(1_500),
        },
        Expected {
            layout: "bare-metal-v2",
            target: Target::Cgroup("/system.slice/web.service".into()),
            cpus: 1.5,
            quota: Some(1.5),
            cpu_time: millis(12_340),
            memory: (GIB, 2.0 * GIB),
            throttled: Some((1_000, 250, millis(4_500))),
            pressure: millis(1_500),
        },
        Expected {
            layout: "docker-v2",
            target: Target::SelfProcess,
            cpus: 0.5,
            quota: Some(0.5),
            cpu_time: process,
            memory: (0.375 * GIB, 0.5 * GIB),
            throttled: Some((40, 10, millis(700))),
            pressure: millis(250),
        },
        Expected {
            layout: "docker-v1",
            target: Target::SelfProcess,
            cpus: 2.5,
            quota: Some(2.5),
            cpu_time: process,
            memory: (0.25 * GIB, 0.5 * GIB),
            throttled: Some((600, 30, millis(1_230))),
            pressure: machine_pressure,
        },
        Expected {
            layout: "k8s-hybrid",
            target: Target::SelfProcess,
            cpus: 2.0,
            quota: Some(2.0),
            cpu_time: process,
            memory: (805_306_368.0, GIB),
            throttled: Some((80, 8, millis(16))),
            pressure: Duration::from_micros(42),
        },
        Expected {
            layout: "k8s-hybrid",
            target: Target::Cgroup("/kubepods/burstable/pod77/c1".into()),
            cpus: 2.0,
            quota: Some(2.0),
            cpu_time: Duration::from_secs(5),
            memory: (805_306_368.0, GIB),
            throttled: Some((80, 8, millis(16))),
            pressure: Duration::from_micros(42),
        },
        Expected {
            layout: "nested-mounts",
            target: Target::SelfProcess,
            cpus: 3.5,
            quota: Some(3.5),
            cpu_time: process,
            memory: rss,
            throttled: Some((1, 0, Duration::ZERO)),
            pressure: machine_pressure,
        },
        Expected {
            layout: "other-namespace",
            target: Target::SelfProcess,
            cpus: 2.5,
            quota: Some(2.5),
            cpu_time: process,
            memory: rss,
            throttled: Some((1, 0, Duration::ZERO)),
            pressure: machine_pressure,
        },
        Expected {
            layout: "no-cgroup",
            target: Target::SelfProcess,
            cpus: 4.0,
            quota: None,
            cpu_time: process,
            memory: rss,
            throttled: None,
            pressure: machine_pressure,
        },
    ];
    for expected in table {
        let (layout, target) = (expected.layout, expected.target.clone());
        let context = format!("{layout}, {target:?}");
        let mut reader = Machine::new(layout, "table").reader(target);
        let cpus = reader.cpus().unwrap();
        assert_eq!((cpus.cpus, cpus.quota), (expected.cpus, expected.quota), "{context}");
        assert_eq!(cpus.trouble, None, "{context}");
        assert_eq!(reader.cpu_time(), Ok(expected.cpu_time), "{context}");
        let Memory { used, reserved, .. } = reader.memory().unwrap();
        assert_eq!((used as f64, reserved as f64), expected.memory, "{context}");
        let throttled = reader.throttling().unwrap();
        let throttled =
            throttled.map(|Throttling { periods, throttled, time, .. }| (periods, throttled, time));
        assert_eq!(throttled, expected.throttled, "{context}");
        assert_eq!(reader.pressure(), Ok(expected.pressure), "{context}");
        assert_eq!(reader.moves(), 0, "{context}");
    }
}

#[test]
fn a_group_without_a_quota_has_the_cpus_of_its_set_or_of_the_machine() {
    let machine = Machine::new("k8s-hybrid", "cpuset");
    let pod = "/sys/fs/cgroup/cpu,cpuacct/kubepods/burstable/pod77";
    for quota in [format!("{pod}/cpu.cfs_quota_us"), format!("{pod}/c1/cpu.cfs_quota_us")] {
        machine.write(&quota, "-1\n");
    }
    let group = Target::Cgroup("/kubepods/burstable/pod77/c1".into());
    assert_eq!(machine.reader(group.clone()).cpus().unwrap().cpus, 3.0);
    machine.remove("/sys/fs/cgroup/cpuset/kubepods/burstable/pod77/c1/cpuset.cpus");
    assert_eq!(machine.reader(group).cpus().unwrap().cpus, 8.0);
}

#[test]
fn a_process_outside_of_our_namespace_has_no_groups_here() {
    let mut reader = Machine::new("other-namespace", "outside").reader(Target::Pid(77));
    let cpus = reader.cpus().unwrap();
    assert_eq!((cpus.cpus, cpus.quota), (1.0, None));
    assert_eq!(reader.memory().unwrap().used, 1024 * 1024);
    assert_eq!(reader.throttling(), Ok(None));
}

#[test]
fn run_delay_adds_up_over_threads_that_come_and_go() {
    let machine = Machine::new("no-cgroup", "run-delay");
    let mut reader = machine.reader(Target::SelfProcess);
    let thread = |id: u32, delay: u64| {
        machine.write(&format!("/proc/self/task/{id}/schedstat"), format!("5 {delay} 1\n"));
    };
    let mut delay = || reader.run_delay().unwrap().as_nanos();
    assert_eq!(delay(), 0, "what was before nobody has seen");
    thread(4242, 3_000_000_100);
    thread(4250, 1_000_000_020);
    assert_eq!(delay(), 120);
    // One ends, and its 1,000,000,020 with it; another comes and has waited 7.
    machine.remove("/proc/self/task/4250");
    thread(4300, 7);
    assert_eq!(delay(), 127);
    // The number is used again: 3 is all that this one has waited.
    thread(4300, 3);
    assert_eq!(delay(), 130);
    // One whose file is gone when it is looked at is on its way out.
    fs::create_dir_all(machine.path("/proc/self/task/4400")).unwrap();
    assert_eq!(delay(), 130);
    // A group's threads are listed by the group.
    let hybrid = Machine::new("k8s-hybrid", "run-delay");
    let mut group = hybrid.reader(Target::Cgroup("/kubepods/burstable/pod77/c1".into()));
    assert_eq!(group.run_delay(), Ok(Duration::ZERO));
    hybrid.write("/proc/4250/schedstat", "800000000 1000000009 66\n");
    assert_eq!(group.run_delay(), Ok(Duration::from_nanos(9)));
}

#[test]
fn a_kernel_that_does_not_count_is_not_one_where_nobody_waits() {
    let machine = Machine::new("no-cgroup", "no-schedstat");
    for thread in [4242, 4250] {
        machine.write(&format!("/proc/self/task/{thread}/schedstat"), "0 0 0\n");
    }
    let mut reader = machine.reader(Target::SelfProcess);
    assert!(matches!(reader.run_delay(), Err(Unknown::Absent { .. })));
}

type Read = fn(&mut Reader) -> Result<(), Unknown>;

/// Every file that a reader looks at, and something that it should not hold.
#[test]
fn nonsense_is_unknown_and_says_what_would_be_right() {
    let group = "/sys/fs/cgroup/system.slice/web.service";
    let slice = "/sys/fs/cgroup/system.slice";
    let cpus: Read = |reader| reader.cpus()?.certain().map(drop);
    let cpu_time: Read = |reader| reader.cpu_time().map(drop);
    let memory: Read = |reader| reader.memory().map(drop);
    let delay: Read = |reader| reader.run_delay().map(drop);
    let pressure: Read = |reader| reader.pressure().map(drop);
    let throttling: Read = |reader| reader.throttling().map(drop);
    let table: [(Read, String, &[&str]); 14] = [
        (
            cpus,
            format!("{group}/cpu.max"),
            &["", "lots", "100000", "0 100000", "1 0", "-1 5", "max x"],
        ),
        (cpus, format!("{slice}/cpu.max"), &["1e5 100000", "\u{0}"]),
        (
            cpus,
            "/proc/self/status".into(),
            &["", "Cpus_allowed_list: 3-1", "Cpus_allowed_list: 0-4294967295"],
        ),
        (
            cpu_time,
            "/proc/self/stat".into(),
            &["", "1 (x) S", "1 (x S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"],
        ),
        (
            memory,
            "/proc/meminfo".into(),
            &["", "MemTotal: 0 kB", "MemTotal: much", "MemTotal: -4 kB"],
        ),
        (memory, format!("{slice}/memory.max"), &["", "0", "-5", "99999999999999999999999"]),
        (memory, format!("{slice}/memory.high"), &["2G"]),
        (memory, format!("{slice}/memory.current"), &["", "max", "-3"]),
        (memory, format!("{slice}/memory.stat"), &["", "inactive_file", "inactive_anon 5"]),
        (delay, "/proc/self/task/4242/schedstat".into(), &["", "5", "a b c", "1 -2 3"]),
        (
            pressure,
            format!("{group}/cpu.pressure"),
            &["", "full total=5", "some avg10=1", "some total=x"],
        ),
        (
            throttling,
            format!("{slice}/cpu.stat"),
            &["", "nr_periods 1", "nr_periods 1\nnr_throttled x"],
        ),
        (throttling, format!("{slice}/cpu.max"), &["nonsense"]),
        (memory, format!("{slice}/memory.stat"), &["inactive_file 99999999999999999999999"]),
    ];
    for (row, (read, file, nonsense)) in table.into_iter().enumerate() {
        let machine = Machine::new("bare-metal-v2", &format!("nonsense-{row}"));
        let mut reader = machine.reader(Target::SelfProcess);
        assert_eq!(read(&mut reader), Ok(()), "{file} as it should be");
        for text in nonsense {
            machine.write(&file, text);
            let unknown = read(&mut reader).expect_err(&format!("{file} holds `{text}`"));
            assert!(matches!(unknown, Unknown::Malformed { .. }), "{unknown}");
            assert!(unknown.to_string().starts_with(&file), "{unknown}");
        }
        machine.remove(&file);
        // A level may have no limits and a thread may have ended; anything else is missed.
        let optional = ["cpu.max", "memory.max", "memory.high", "4242/schedstat"];
        let expected = optional.iter().any(|name| file.ends_with(name));
        assert_eq!(read(&mut reader).is_ok(), expected, "{file} is missing");
    }
}

#[test]
fn a_group_that_vanishes_is_unknown_until_the_process_is_found_elsewhere() {
    let machine = Machine::new("k8s-hybrid", "vanish");
    let mut reader = machine.reader(Target::SelfProcess);
    assert_eq!(reader.cpus().unwrap().cpus, 2.0);
    let gone = ["cpu,cpuacct", "memory", "unified"];
    for hierarchy in gone {
        machine.remove(&format!("/sys/fs/cgroup/{hierarchy}/kubepods/burstable/pod77"));
    }
    let cpus = reader.cpus().unwrap();
    assert!(cpus.trouble.as_ref().is_some_and(|t| t.to_string().contains("pod77")), "{cpus:?}");
    assert!(cpus.certain().is_err(), "it is not known that there is no quota");
    assert!(reader.memory().is_err());
    assert!(reader.throttling().is_err());
    assert!(reader.pressure().is_ok_and(|total| total == Duration::from_secs(7)), "the machine's");
    let new = "/sys/fs/cgroup/cpu,cpuacct/new";
    machine.write(&format!("{new}/cpu.cfs_quota_us"), "125000");
    machine.write(&format!("{new}/cpu.cfs_period_us"), "100000");
    machine.write("/proc/self/cgroup", "4:cpu,cpuacct:/new\n");
    assert_eq!(reader.cpus().unwrap().certain(), Ok(1.25));
    assert_eq!(reader.moves(), 1);
    // Nothing is left of the machine.
    machine.remove("/proc");
    machine.remove("/sys");
    assert!(reader.cpus().is_err() && reader.memory().is_err() && reader.run_delay().is_err());
    assert!(reader.pressure().is_err() && reader.cpu_time().is_err());
    assert!(linux::all(&reader).is_empty());
}

#[test]
fn a_process_that_was_replaced_is_not_the_one_that_is_watched() {
    let machine = Machine::new("no-cgroup", "replaced");
    let stat = |cpu: u32, start: u32| {
        let fields = format!("9 (w) S 1 1 1 1 1 1 1 1 1 1 {cpu} 0 0 0 20 0 1 0 {start} 0");
        machine.write("/proc/9/stat", fields);
    };
    stat(100, 5);
    let mut reader = machine.reader(Target::Pid(9));
    assert_eq!(reader.cpu_time(), Ok(Duration::from_secs(1)));
    stat(200, 5);
    assert_eq!(reader.cpu_time(), Ok(Duration::from_secs(2)));
    for _ in 0..2 {
        stat(300, 6);
        assert_eq!(reader.cpu_time(), Err(Unknown::Replaced { pid: 9 }));
    }
}

/// Samples at 0 s and 1 s, with `change` in between.
fn sample(signal: &mut dyn Signal, change: impl FnOnce()) -> Option<f64> {
    signal.sample(Timestamp::from_secs(0));
    change();
    signal.sample(Timestamp::from_secs(1)).map(Utilization::get)
}

#[test]
fn signals_by_the_table() {
    let slice = "/sys/fs/cgroup/system.slice";
    let machine = Machine::new("bare-metal-v2", "signals");
    let reader = || machine.reader(Target::SelfProcess);
    let group = || machine.reader(Target::Cgroup("/system.slice/web.service".into()));
    let write = |path: &str, text: &str| machine.write(path, text);
    // 1.125 s of CPU time in a second of 1.5 CPUs.
    let used = || write(&format!("{slice}/web.service/cpu.stat"), "usage_usec 13465000");
    assert_eq!(sample(&mut linux::CpuTime::new(group()), used), Some(0.75));
    let mut reserved = linux::CpuTime::new(group()).reserved(3.0).unwrap();
    let used = || write(&format!("{slice}/web.service/cpu.stat"), "usage_usec 14965000");
    assert_eq!(sample(&mut reserved, used), Some(0.5));
    assert!(linux::CpuTime::new(group()).reserved(f64::NAN).is_err());
    assert_eq!(sample(&mut linux::MemoryUse::new(reader()), || {}), Some(0.5));
    // 4 GiB of its own.
    let eight = core::num::NonZeroU64::new(8 << 30).unwrap();
    assert_eq!(sample(&mut linux::MemoryUse::new(reader()).reserved(eight), || {}), Some(0.5));
    // 0.75 s of waiting in a second, on 1.5 CPUs.
    let waited = || write("/proc/self/task/4242/schedstat", "900000000 3750000000 77");
    assert_eq!(sample(&mut linux::RunDelay::new(reader()), waited), Some(0.5));
    let waited =
        || write(&format!("{slice}/web.service/cpu.pressure"), "some avg10=0 total=1750000");
    assert_eq!(sample(&mut linux::Pressure::new(reader()), waited), Some(0.25));
    // Five periods of ten.
    let stat = "nr_periods 1010\nnr_throttled 255\nthrottled_usec 9";
    let throttled = || write(&format!("{slice}/cpu.stat"), stat);
    assert_eq!(sample(&mut linux::Throttled::new(reader()), throttled), Some(0.5));
    // Unknown is not zero.
    let mut memory = linux::MemoryUse::new(reader());
    assert_eq!(sample(&mut memory, || machine.remove(&format!("{slice}/memory.current"))), None);
    assert!(memory.trouble().unwrap().contains("memory.current"));
    let names: Vec<String> =
        linux::all(&reader()).iter().map(|signal| signal.name().to_owned()).collect();
    assert_eq!(names, ["cpu_pressure", "cpu_throttled", "cpu", "run_delay"]);
}

#[test]
fn a_quota_that_changes_changes_the_reservation() {
    let machine = Machine::new("docker-v2", "resize");
    let mut signal = linux::CpuTime::new(machine.reader(Target::Cgroup("/".into())));
    let mut at = |second: u64, usage: u64| {
        machine.write("/sys/fs/cgroup/cpu.stat", format!("usage_usec {usage}\n"));
        signal.sample(Timestamp::from_secs(second)).map(Utilization::get)
    };
    assert_eq!(at(0, 0), None);
    assert_eq!(at(1, 250_000), Some(0.5));
    machine.write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    assert_eq!(at(2, 500_000), None, "it starts over");
    assert_eq!(at(3, 750_000), Some(0.25));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the files hold, what comes out is known and finite, or unknown.
    #[test]
    fn no_file_makes_a_reader_panic(
        texts in proptest::collection::vec("(\\PC|[ \n:,0-9/.-]){0,60}", 12),
        mountinfo: bool,
    ) {
        static MACHINE: LazyLock<Machine> = LazyLock::new(|| Machine::new("docker-v2", "fuzz"));
        let machine = &*MACHINE;
        let files = [
            "/proc/self/cgroup", "/proc/self/stat", "/proc/self/status", "/proc/meminfo",
            "/proc/self/task/4242/schedstat", "/proc/pressure/cpu", "/sys/fs/cgroup/cpu.max",
            "/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat",
            "/sys/fs/cgroup/cpu.pressure",
        ];
        for (file, text) in files.iter().zip(&texts) {
            machine.write(file, text);
        }
        let mounts = "732 731 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw
";
        machine.write("/proc/self/mountinfo", if mountinfo { mounts } else { &texts[11] });
        for target in [Target::SelfProcess, Target::Pid(4), Target::Cgroup("/a/../..".into())] {
            let mut reader = machine.reader(target);
            if let Ok(cpus) = reader.cpus() {
                prop_assert!(cpus.cpus > 0.0 && cpus.cpus.is_finite());
            }
            if let Ok(memory) = reader.memory() {
                prop_assert!(memory.utilization().is_finite());
            }
            let _ = (reader.cpu_time(), reader.run_delay(), reader.pressure(), reader.throttling());
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine() {
    let mut reader = Reader::default();
    let cpus = reader.cpus().unwrap();
    let whole = std::thread::available_parallelism().unwrap().get();
    // The library rounds down, but never below one.
    assert_eq!(cpus.cpus.floor().max(1.0) as usize, whole, "{cpus:?}");
    assert_eq!(cpus.trouble, None);
    let memory = reader.memory().unwrap();
    assert!(memory.used > 0 && memory.utilization() < 1.0, "{memory:?}");
    let before = reader.cpu_time().unwrap();
    let mut spun = 0_u64;
    while reader.cpu_time().unwrap() == before {
        spun += 1;
    }
    assert!(reader.cpu_time().unwrap() > before, "after {spun} rounds");
    // By its number a process is what it is by itself, to the hundredth of a second.
    let mut other = Reader::new(Target::Pid(std::process::id()));
    let (seen, own) = (other.cpu_time().unwrap(), reader.cpu_time().unwrap());
    assert!(seen <= own, "{seen:?} {own:?}");
    assert_eq!(other.cpus(), reader.cpus());
    assert!(other.memory().is_ok());
    let names: Vec<String> =
        linux::all(&reader).iter().map(|signal| signal.name().to_owned()).collect();
    assert!(names.iter().any(|name| name == "cpu"), "{names:?}");
    assert!(names.iter().any(|name| name == "memory"), "{names:?}");
}
