use super::*;
use crate::clock::Clock;
use crate::life::LifeConfig;
use core::time::Duration;
use tidegate_wire::orca::{self, Format, OrcaLoadReport};

/// A life that stays in its phase until it is hastened.
fn life() -> Life {
    let config = LifeConfig { drain_delay: Duration::MAX, drain_max: Duration::MAX };
    Life::new(config, Clock::manual().0)
}

#[test]
fn readiness_follows_the_life_and_liveness_nothing() {
    let life = life();
    let health = Health::new(life.clone());
    for (step, ready, text) in [
        (None, 503, "starting"),
        (Some(Life::ready as fn(&Life) -> _), 200, "serving"),
        (Some(Life::stop), 503, "lame duck"),
        (Some(Life::hasten), 503, "draining"),
        (Some(Life::hasten), 503, "gone"),
    ] {
        if let Some(step) = step {
            step(&life);
        }
        let readyz = health.answer("/readyz").unwrap();
        assert_eq!((readyz.status().as_u16(), &readyz.body()[..]), (ready, text.as_bytes()));
        let leaving = readyz.headers().contains_key("x-envoy-immediate-health-check-fail");
        assert_eq!(leaving, !matches!(text, "starting" | "serving"), "{text}");
        assert_eq!(health.answer("/livez").unwrap().status(), 200, "{text}");
    }
    assert!(health.answer("/readyz/").is_none());
}

#[test]
fn every_answer_carries_the_report() {
    let report = OrcaLoadReport { cpu_utilization: 0.25, ..OrcaLoadReport::default() };
    let told = report.clone();
    let health = Health::new(life()).load(move || orca::encode(&told, Format::Json).ok());
    for path in [LIVEZ, READYZ] {
        let answer = health.answer(path).unwrap();
        assert_eq!(orca::read(answer.headers()), Ok(Some(report.clone())), "{path}");
    }
}

#[test]
fn as_a_service_it_knows_its_paths_and_methods() {
    let mut health = Health::new(life());
    for (method, path, status) in [
        ("GET", "/livez", 200),
        ("HEAD", "/livez?verbose", 200),
        ("GET", "/readyz", 503),
        ("POST", "/livez", 405),
        ("GET", "/", 404),
    ] {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let answer = health.call(request).into_inner().unwrap();
        assert_eq!(answer.status(), status, "{method} {path}");
    }
}

#[cfg(feature = "tonic")]
mod streams {
    use super::*;
    use futures_util::StreamExt;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use tidegate_wire::proto::xds::service::orca::v3::OrcaLoadReportRequest;
    use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_server::OpenRcaService;
    use tonic::{Code, Request};

    fn reports(life: &Life) -> LoadReports {
        let count = AtomicU64::new(0);
        LoadReports::new(life.clone(), move || {
            let mut report = OrcaLoadReport {
                rps_fractional: count.fetch_add(1, Relaxed) as f64,
                ..OrcaLoadReport::default()
            };
            // Every third is broken.
            if report.rps_fractional % 3.0 == 1.0 {
                report.eps = f64::NAN;
            }
            let costs = [("cpu", 0.5), ("memory", 7.0), ("disk", 1.0)];
            report.request_cost = costs.map(|(name, cost)| (name.to_owned(), cost)).into();
            report
        })
    }

    fn every(millis: i64, names: &[&str]) -> Request<OrcaLoadReportRequest> {
        // The type of the field is prost's, which is no dependency of ours.
        let mut request = OrcaLoadReportRequest::default();
        let interval = request.report_interval.get_or_insert_default();
        interval.seconds = millis / 1_000;
        interval.nanos = (millis % 1_000) as i32 * 1_000_000;
        request.request_cost_names = names.iter().map(|&name| name.to_owned()).collect();
        Request::new(request)
    }

    #[tokio::test(start_paused = true)]
    async fn reports_come_as_often_as_was_asked_but_not_more_often_than_allowed() {
        let life = life();
        for (wanted, got) in [(5_000, 5.0), (1_500, 1.5), (10, 1.0), (0, 1.0), (-9_000, 1.0)] {
            let stream = reports(&life).stream_core_metrics(every(wanted, &[])).await;
            let mut stream = stream.unwrap().into_inner();
            let start = tokio::time::Instant::now();
            let mut seen = Vec::new();
            for _ in 0..3 {
                let report = stream.next().await.unwrap().unwrap();
                seen.push((report.rps_fractional, start.elapsed().as_secs_f64() / got));
            }
            // The first at once; the second is broken and left out.
            let rounded: Vec<_> = seen.iter().map(|(n, t)| (*n, (t * 10.0).round())).collect();
            assert_eq!(rounded, [(0.0, 0.0), (2.0, 20.0), (3.0, 30.0)], "{wanted} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn costs_are_those_that_were_asked_for() {
        let life = life();
        for (names, found) in [
            (&[][..], &["cpu", "disk", "memory"][..]),
            (&["memory", "cpu", "nonsense"], &["cpu", "memory"]),
            (&["nonsense"], &[]),
        ] {
            let stream = reports(&life).stream_core_metrics(every(1_000, names)).await;
            let report = stream.unwrap().into_inner().next().await.unwrap().unwrap();
            assert_eq!(report.request_cost.keys().collect::<Vec<_>>(), found, "{names:?}");
        }
        let names = vec!["x"; 65];
        let refused = reports(&life).stream_core_metrics(every(1_000, &names)).await;
        assert_eq!(refused.map(drop).unwrap_err().code(), Code::InvalidArgument);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_only_so_many_streams_and_they_end() {
        let life = life();
        life.ready();
        let reports = reports(&life).streams_max(2);
        let open = || reports.stream_core_metrics(every(1_000, &[]));
        let mut first = open().await.unwrap().into_inner();
        let second = open().await.unwrap();
        assert_eq!(open().await.map(drop).unwrap_err().code(), Code::ResourceExhausted);
        drop(second);
        let _third = open().await.unwrap();
        assert!(first.next().await.is_some());
        life.stop();
        assert!(first.next().await.is_some(), "a lame duck still works, and reports");
        life.hasten();
        assert!(first.next().await.is_none());
    }
}
