//! What a process meters with when the C library does not register rseq.

use std::process::Command;
use tidegate_meter::{Account, Kind, Meter};

const CHILD: &str = "TIDEGATE_METER_FALLBACK_CHILD";

fn ask_child(tunables: &str) -> String {
    let name = "without_rseq_the_anchor_is_left";
    let output = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .env("GLIBC_TUNABLES", tunables)
        .output()
        .expect("this program can be run");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find_map(|line| line.split_once("meters by "));
    line.unwrap_or_else(|| panic!("{said}")).1.to_owned()
}

#[test]
fn without_rseq_the_anchor_is_left() {
    if std::env::var_os(CHILD).is_some() {
        let account = Account::new();
        account.run(|| {});
        println!("meters by {}", Meter::kind().name());
        return;
    }
    assert_eq!(ask_child(""), Meter::kind().name());
    // A switch of glibc's own, which other C libraries do not read.
    if cfg!(target_env = "gnu") {
        let expected = Meter::probe().best().min(Kind::Anchor);
        assert_eq!(ask_child("glibc.pthread.rseq=0"), expected.name());
    }
}

#[test]
fn a_limit_holds_for_threads_that_come_later() {
    let kind_of_a_new_thread =
        || std::thread::spawn(Meter::kind).join().expect("it does not panic");
    let best = Meter::probe().best();
    assert_eq!(kind_of_a_new_thread(), best);
    for kind in Kind::ALL {
        Meter::limit_to(kind);
        assert_eq!(kind_of_a_new_thread(), kind.min(best));
    }
}
