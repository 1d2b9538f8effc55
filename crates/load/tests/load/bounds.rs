//! Servers that are down, slow or silent.

use crate::support::{Reply, Server, assert_adds_up, plan, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_load::{Course, Load, Protocol, Run, Spacing, Weighted};

#[test]
fn a_server_that_stalls_is_seen_by_all_that_were_due() {
    // The one thread of the server stands still for 400 ms, from the tenth request on.
    let stalled = Arc::new(AtomicBool::new(false));
    let server = Server::start(move |number, _| {
        if number >= 10 && !stalled.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(400));
        }
        Reply::ok()
    });
    let mut plan = server.plan(&["500 for 1s"]);
    plan.connections = 2;
    plan.connections_max = 2;
    if let Load::Open { spacing, .. } = &mut plan.course.load {
        *spacing = Spacing::Even;
    }
    let report = run(plan);
    assert_eq!((report.total.offered, report.total.ok), (500, 500), "{report:?}");
    let slow = |histogram: &hdrhistogram::Histogram<u64>, millis: u64| {
        histogram.count_between(millis * 1_000_000, u64::MAX)
    };
    let latency = report.stats.latency();
    // A hundred were due in the first 200 ms of the stall, and waited for 200 ms at least. Who had
    // waited for answers before asking on would have seen two, as both connections stood still.
    let (due, sent) = (slow(&latency, 200), slow(&report.stats.service, 200));
    assert!(due >= 95 && sent * 5 < due, "{due} {sent}");
    assert!(report.generator.queued >= 190, "{}", report.generator.queued);
}

#[test]
fn nobody_listening_is_an_error_of_each_request() {
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for protocol in [Protocol::Http1, Protocol::H2] {
        let mut plan = plan(address, &["200 for 300ms"]);
        plan.protocol = protocol;
        let report = run(plan);
        assert!(report.total.offered > 0);
        assert_eq!(report.total.errors["connection_refused"], report.total.offered);
        assert_eq!(report.total.failed, report.total.offered);
    }
}

#[test]
fn what_does_not_fit_is_not_sent_and_says_why() {
    for protocol in [Protocol::Http1, Protocol::H2] {
        let server = Server::start(|_, _| Reply { never: true, ..Reply::default() });
        let mut plan = server.plan(&["500 for 500ms"]);
        plan.protocol = protocol;
        plan.connections = 1;
        plan.connections_max = 1;
        plan.streams = 1;
        plan.backlog = 20;
        plan.course.timeout = Duration::from_millis(200);
        let report = run(plan);
        let total = &report.total;
        assert_eq!((total.ok, total.failed), (0, total.sent), "{report:?}");
        assert_eq!(total.errors["timeout"], total.sent);
        // One is on its way and twenty wait: the rest of 200 ms is too much.
        assert!(total.not_sent["backlog_full"] > 50, "{total:?}");
        assert!(total.not_sent["no_connection"] > 0, "{total:?}");
        assert!(!report.generator.kept_schedule);
    }
}

#[test]
fn callers_give_up_at_their_deadline() {
    for protocol in [Protocol::Http1, Protocol::H2, Protocol::Grpc] {
        let server = Server::start(|_, _| Reply { never: true, ..Reply::default() });
        let mut plan = server.plan(&["100 for 300ms"]);
        plan.protocol = protocol;
        let mut route = plan.course.routes.items()[0].clone();
        route.mix.deadline = Weighted::only(Some(Duration::from_millis(50)));
        plan.course.routes = Weighted::only(route);
        let report = run(plan);
        let total = &report.total;
        assert!(total.offered > 0);
        assert_eq!(total.errors["timeout"], total.offered, "{total:?}");
        // The histogram's three digits round down.
        assert!(report.unhappy_ms.unwrap().min >= 49.9);
    }
}

#[test]
fn late_answers_are_ok_and_no_goodput() {
    let server = Server::start(|_, _| {
        std::thread::sleep(Duration::from_millis(5));
        Reply::ok()
    });
    let mut plan = server.plan(&["50 for 300ms"]);
    let mut route = plan.course.routes.items()[0].clone();
    route.mix.deadline = Weighted::only(Some(Duration::from_millis(4)));
    plan.course.routes = Weighted::only(route);
    plan.course.wait_past_deadline = true;
    let report = run(plan);
    assert_eq!((report.total.ok, report.total.good), (report.total.offered, 0), "{report:?}");
}

#[test]
fn a_run_that_is_ended_adds_up() {
    let server = Server::start(|number, _| Reply { never: number >= 50, ..Reply::ok() });
    let mut plan = server.plan(&["500 for 60s"]);
    plan.interval = Duration::from_millis(50);
    plan.connections_max = 8;
    let run = Run::start(plan).unwrap();
    let handle = run.handle();
    // When all connections are stuck and others wait, somebody has had enough.
    let mut ok = 0;
    let report = run.finish(|interval| {
        ok += interval.stats.sum(|level| level.ok);
        if ok == 50 && interval.stats.queued > 0 {
            handle.stop();
        }
    });
    let report = report.unwrap();
    assert!(report.ended_early && report.seconds < 50.0, "{}", report.seconds);
    assert_eq!((report.total.ok, report.total.unfinished), (50, 8), "{:?}", report.total);
    assert!(report.total.not_sent["ended"] > 0);
    assert_adds_up(&report);
}

#[test]
fn a_closed_loop_asks_as_fast_as_it_is_answered() {
    for protocol in [Protocol::Http1, Protocol::H2] {
        let server = Server::start(|_, _| Reply::ok());
        let mut plan = server.plan(&["1 for 1s"]);
        plan.protocol = protocol;
        plan.connections = 2;
        plan.streams = 4;
        plan.threads = 2;
        plan.course.load = Load::Closed { duration: Duration::from_millis(300) };
        let report = run(plan);
        assert_eq!(report.arrivals, "closed");
        assert!(report.total.ok > 20, "{report:?}");
        assert_eq!(report.total.ok, report.total.offered);
        assert_eq!(server.asked().len() as u64, report.total.attempts);
        assert!(report.generator.late_ms.is_none());
    }
}

#[test]
fn callers_change_their_mind_on_the_way() {
    let server = Server::start(|_, _| Reply::ok());
    let mut plan = server.plan(&["100 for 60s"]);
    plan.interval = Duration::from_millis(50);
    let mut route = plan.course.routes.items()[0].clone();
    route.path = "/after".to_owned();
    let after = Course {
        load: Load::Open {
            stages: vec!["1000 for 200ms".parse().unwrap()],
            spacing: Spacing::Even,
        },
        routes: Weighted::only(route),
        ..plan.course.clone()
    };
    let run = Run::start(plan).unwrap();
    let handle = run.handle();
    let report = run.finish(|interval| {
        if interval.number == 1 {
            handle.switch(after.clone()).unwrap();
        }
    });
    let report = report.unwrap();
    assert_adds_up(&report);
    assert!(!report.ended_early && report.seconds < 50.0);
    let after = server.asked().iter().filter(|asked| asked.path == "/after").count();
    assert_eq!(after, 200);
    assert!(server.asked().len() > 200);
    assert_eq!(report.total.ok, report.total.offered);
}

#[test]
fn answers_count_for_the_course_that_has_asked() {
    let server = Server::start(|_, asked| match asked.path.as_str() {
        "/after" => Reply::ok(),
        _ => Reply { never: true, ..Reply::default() },
    });
    let mut plan = server.plan(&["200 for 60s"]);
    plan.interval = Duration::from_millis(50);
    plan.course.timeout = Duration::from_millis(200);
    let mut route = plan.course.routes.items()[0].clone();
    route.path = "/after".to_owned();
    let stages = vec!["500 for 400ms".parse().unwrap()];
    let after = Course {
        load: Load::Open { stages, spacing: Spacing::Even },
        routes: Weighted::only(route),
        timeout: Duration::from_secs(20),
        ..plan.course.clone()
    };
    let run = Run::start(plan).unwrap();
    let handle = run.handle();
    let mut fates = [(0, 0, 0); 2];
    let report = run.finish(|interval| {
        if (interval.number, interval.course) == (1, 0) {
            assert_eq!(handle.switch(after.clone()).unwrap(), 1);
        }
        let (offered, ok, failed) = &mut fates[interval.course as usize];
        *offered += interval.stats.sum(|level| level.offered);
        *ok += interval.stats.sum(|level| level.ok);
        *failed += interval.stats.sum(|level| level.failed);
    });
    assert_adds_up(&report.unwrap());
    let [(offered, ok, failed), after] = fates;
    assert!(offered > 0 && ok == 0 && failed == offered, "{fates:?}");
    assert_eq!(after, (200, 200, 0));
}
