//! What is sent is what was planned.

use crate::support::{Reply, Server, run};
use std::time::Duration;
use tidegate_core::Criticality;
use tidegate_load::mix::choose;
use tidegate_load::schedule::{Arrivals, dice_of};
use tidegate_load::{Load, Plan, Spacing, Weighted};

fn mixed(server: &Server, threads: u32) -> Plan {
    let mut plan = server.plan(&["300..900 for 500ms"]);
    plan.threads = threads;
    plan.course.seed = 11;
    let mut first = plan.course.routes.items()[0].clone();
    let levels = Criticality::ALL.map(|level| (level, 1 + level.index() as u32));
    first.mix.criticality = Weighted::new(levels).unwrap();
    first.mix.customer = Weighted::new([(Some("a".into()), 5), (None, 1)]).unwrap();
    let mut second = first.clone();
    first.path = "/first".into();
    second.path = "/second".into();
    plan.course.routes = Weighted::new([(first, 2), (second, 1)]).unwrap();
    plan
}

type Told = (String, Option<Criticality>, Option<String>);

#[test]
fn the_seed_says_what_is_asked_whatever_the_threads() {
    let mut planned: Vec<Told> = Vec::new();
    for threads in [1, 2] {
        let server = Server::start(|_, _| Reply::ok());
        let plan = mixed(&server, threads);
        let course = plan.course.clone();
        let Load::Open { stages, spacing } = &course.load else { panic!() };
        planned = Arrivals::new(stages, *spacing, 11)
            .map(|arrival| {
                let choice = choose(&course.routes, &mut dice_of(11, arrival.number));
                let route = &course.routes.items()[choice.route as usize];
                let customer = route.mix.customer.items()[choice.customer as usize].as_deref();
                (route.path.clone(), Some(choice.criticality), customer.map(str::to_owned))
            })
            .collect();
        let report = run(plan);
        assert_eq!(report.total.ok as usize, planned.len());
        let mut asked: Vec<Told> = server
            .asked()
            .iter()
            .map(|asked| {
                let customer = asked.headers.get("x-customer");
                let customer = customer.map(|value| value.to_str().unwrap().to_owned());
                (asked.path.clone(), asked.said().criticality, customer)
            })
            .collect();
        asked.sort();
        let mut sorted = planned.clone();
        sorted.sort();
        assert_eq!(asked, sorted, "{threads} threads");
    }
    assert!(planned.len() > 200);
}

#[test]
fn a_warm_up_is_sent_and_not_counted() {
    let server = Server::start(|_, _| Reply::ok());
    let mut plan = server.plan(&["200 for 300ms"]);
    plan.warmup = Duration::from_millis(250);
    if let Load::Open { spacing, .. } = &mut plan.course.load {
        *spacing = Spacing::Even;
    }
    let report = run(plan);
    assert_eq!((report.total.offered, report.total.ok), (60, 60));
    assert_eq!(server.asked().len(), 110);
    assert!((report.seconds - 0.3).abs() < 0.05, "{}", report.seconds);
}
