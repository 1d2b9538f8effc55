use super::*;

#[test]
fn fields_are_where_the_kernel_has_them() {
    assert_eq!(std::mem::offset_of!(Area, cpu_id), 4);
    assert_eq!(std::mem::offset_of!(Area, rseq_cs), 8);
    assert_eq!(std::mem::offset_of!(Descriptor, start_ip), 8);
    assert_eq!(std::mem::offset_of!(Descriptor, post_commit_offset), 16);
    assert_eq!(std::mem::offset_of!(Descriptor, abort_ip), 24);
}

/// Field by field what `rseq_get_rseq_cs` of the kernel refuses.
#[test]
fn the_kernel_accepts_the_descriptor() {
    assert_eq!(size_of::<Descriptor>() % 32, 0);
    let address = descriptor();
    assert_eq!(address % 32, 0);
    assert_eq!(descriptor(), address, "one for the process");
    let at = ptr::with_exposed_provenance::<Descriptor>(address as usize);
    // SAFETY: `descriptor` has made it, at this address, and nobody changes or frees it.
    let descriptor = unsafe { &*at };
    assert_eq!((descriptor.version, descriptor.flags), (0, 0));
    let user_end = 1_u64 << 47;
    assert!(descriptor.start_ip + descriptor.post_commit_offset < user_end);
    assert!(descriptor.abort_ip < user_end);
    // No instruction pointer is inside: ip - start < offset is never true.
    assert_eq!(descriptor.post_commit_offset, 0);
    let from_start = descriptor.abort_ip.wrapping_sub(descriptor.start_ip);
    assert!(from_start >= descriptor.post_commit_offset, "the abort address is outside");
    let signature = ptr::with_exposed_provenance::<u32>(descriptor.abort_ip as usize - 4);
    // SAFETY: it is the first word of the descriptor's own `abort`.
    assert_eq!(unsafe { signature.read() }, SIGNATURE);
}

#[test]
fn the_blind_watch_stays_armed() {
    assert!(Watch::BLIND.is_armed());
    Watch::BLIND.arm();
    assert!(Watch::BLIND.is_armed());
}

/// Waiting is a switch out. Kernels up to 6.18 ring for it, newer ones need not; but no kernel
/// may leave anything else than our address or zero.
#[test]
fn the_field_holds_our_address_or_zero() {
    let Some(watch) = Watch::here() else { return };
    watch.arm();
    std::thread::spawn(|| {}).join().unwrap();
    // SAFETY: as in `is_armed`.
    let field = unsafe { (*watch.rseq_cs).load(Ordering::Relaxed) };
    assert!(field == 0 || field == watch.ours, "{field:#x}");
}

#[test]
fn each_thread_has_its_own() {
    let here = Watch::here().map(|watch| watch.rseq_cs.addr());
    let there = std::thread::spawn(|| Watch::here().map(|watch| watch.rseq_cs.addr()));
    let there = there.join().unwrap();
    assert_eq!(here.is_some(), there.is_some());
    assert!(here.is_none() || here != there);
}

/// Names this test to its own child process.
const CHILD: &str = "TIDEGATE_METER_RSEQ_CHILD";

/// As many as a busy server has in a second, and far more than a mistake survives: the kernel looks
/// at the descriptor at every one of them, and kills the process if it does not like it.
const EVENTS: u64 = 3_000;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// A signal handler that meters, in the middle of whatever the thread was metering.
extern "C" fn on_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    if let Some(watch) = Watch::here() {
        watch.arm();
    }
}

/// Has a signal sent to this process every 200 µs from here on.
fn signals() {
    // SAFETY: all zeroes is a valid `sigaction`: no flags, no signals masked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only touches atomics and the thread's own field: nothing that a signal
    // may not do.
    let installed = unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) };
    assert_eq!(installed, 0);
    let each = libc::timeval { tv_sec: 0, tv_usec: 200 };
    let timer = libc::itimerval { it_interval: each, it_value: each };
    // SAFETY: `timer` is valid and lives through the call.
    let started = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    assert_eq!(started, 0);
}

/// Runs in a process of its own, as it would not be the only test to die.
fn child() {
    use std::sync::atomic::AtomicBool;
    signals();
    let done = AtomicBool::new(false);
    let (rings, preempted) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        // Threads that wake up often take the CPU from those that spin.
        for _ in 0..4 {
            threads.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                    rings.fetch_add(0, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..3 {
            threads.spawn(|| {
                let watch = Watch::here().unwrap();
                watch.arm();
                while !done.load(Ordering::Relaxed) {
                    // Not one system call in here: a ring is a preemption, or a signal.
                    if !watch.is_armed() {
                        watch.arm();
                        rings.fetch_add(1, Ordering::Relaxed);
                    }
                }
                preempted.fetch_add(involuntary_switches(), Ordering::Relaxed);
            });
        }
        let enough =
            || rings.load(Ordering::Relaxed) >= EVENTS && SIGNALS.load(Ordering::Relaxed) >= EVENTS;
        while !enough() {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(preempted.load(Ordering::Relaxed) > 0);
    println!("{rings:?} rings, {SIGNALS:?} signals, {preempted:?} preemptions");
}

/// How often the calling thread was taken off its CPU.
fn involuntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let field = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    field.unwrap().trim().parse().unwrap()
}

#[test]
fn a_process_survives_thousands_of_preemptions_and_signals() {
    if Watch::here().is_none() {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let name = "sys::rseq::tests::a_process_survives_thousands_of_preemptions_and_signals";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?}\n{said}", output.status);
    assert!(said.contains(" rings, "), "the test was not found by its name:\n{said}");
    println!("{said}");
}
