use super::files::Files;
use super::mounts::{Version, memberships, mounts, place};
use super::process::count_cpus;
use proptest::prelude::*;

#[test]
fn lists_of_cpus() {
    for (list, count) in [
        ("0", Some(1)),
        ("0-3", Some(4)),
        ("0-1,4-5,9\n", Some(5)),
        ("", None),
        ("3-1", None),
        ("0,", None),
        ("0-4294967295", None),
        ("a-b", None),
    ] {
        assert_eq!(count_cpus(list), count, "{list}");
    }
}

/// One hierarchy, by the table of `mounts`; no directory exists.
#[test]
fn where_a_group_is() {
    let nowhere = Files::new("/nonexistent");
    for (path, root, directory) in [
        ("/system.slice/x", "/", Some("/m/system.slice/x")),
        ("/", "/", Some("/m")),
        ("/docker/1f", "/docker/1f", Some("/m")),
        ("/docker/1f/inner", "/docker/1f", Some("/m/inner")),
        // A name is not the beginning of another.
        ("/docker/1f2", "/docker/1f", Some("/m")),
        ("/../other", "/", None),
        ("/../other", "/..", Some("/m/other")),
        ("relative", "/", None),
    ] {
        let mounts = mounts(&format!("1 1 0:1 {root} /m rw shared:1 - cgroup2 none rw"));
        let members = memberships(&format!("0::{path}"));
        let found = place("cpu", &mounts, &members, &nowhere);
        let found = found.map(|place| place.directory);
        assert_eq!(found.as_deref(), directory.map(std::path::Path::new), "{path} in {root}");
    }
}

#[test]
fn levels_end_at_the_mount() {
    let mounts = mounts("1 1 0:1 / /sys/fs/cgroup rw - cgroup none rw,cpu,cpuacct");
    let members = memberships("7:cpuacct,cpu:/a/b:c\n0::/z");
    let place = place("cpu", &mounts, &members, &Files::new("/nonexistent")).unwrap();
    assert_eq!(place.version, Version::V1);
    let levels: Vec<_> = place.levels().map(|level| level.to_str().unwrap()).collect();
    assert_eq!(levels, ["/sys/fs/cgroup/a/b:c", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
}

#[test]
fn a_later_mount_hides_an_earlier_one_and_other_kinds_do_not_count() {
    let mounts = mounts(
        "1 1 0:1 / /old rw - cgroup2 none rw\n\
         2 1 0:1 / /new\\011tab rw - cgroup2 none rw\n\
         3 1 0:1 / /v1 rw - cgroup none rw,memory\n\
         4 1 0:1 / /tmp rw - tmpfs cgroup2 rw\n\
         5 1 0:1 / /torn rw - \n\
         6 1\n",
    );
    assert_eq!(mounts.len(), 3);
    let members = memberships("0::/g");
    let place = place("memory", &mounts, &members, &Files::new("/nonexistent")).unwrap();
    assert_eq!(place.directory.to_str(), Some("/new\ttab/g"));
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(
        info in "(\\PC|[ -/0-9:,\n\\\\]){0,200}",
        group in "\\PC{0,80}",
    ) {
        let (mounts, members) = (mounts(&info), memberships(&group));
        let place = place("cpu", &mounts, &members, &Files::new("/nonexistent"));
        if let Some(place) = place {
            prop_assert!(!place.directory.components().any(|c| c == std::path::Component::ParentDir)
                || info.contains(".."));
        }
        let _ = count_cpus(&info);
    }
}

/// Its name is what a process can change about its own files, at once and as often as it likes.
#[test]
fn a_file_that_stays_open_says_what_holds_now() {
    let files = Files::new("/");
    let path = format!("/proc/{}/comm", std::process::id());
    for name in ["first", "second", "third"] {
        std::fs::write(&path, name).unwrap();
        assert_eq!(files.read_again(&path).unwrap().as_str().trim(), name);
    }
}

#[test]
fn a_file_of_a_process_that_has_ended_is_missing_though_it_was_open() {
    let files = Files::new("/");
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/stat", child.id());
    assert!(files.read_again_if_there(&path).unwrap().is_some());
    assert!(files.read_again_if_there(&path).unwrap().is_some());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(files.read_again_if_there(&path).unwrap().is_none());
}
