use super::*;
use core::cell::RefCell;
use http::{Request, Response};
use http_body_util::Full;
use tidegate_core::CostRate;
use tidegate_core::cost::MethodId;
use tidegate_core::machine::MachineTable;
use tidegate_core::quota::QuotaConfig;
use tower::{Layer, ServiceExt, service_fn};

#[test]
fn what_cannot_be_is_refused_with_what_would_be_right() {
    let mut quota = QuotaConfig::default();
    quota.customers_max = 2;
    let crowded = Task::builder("test")
        .quota(quota)
        .customer("a", Limits::UNLIMITED)
        .customer("b", Limits::UNLIMITED);
    for (builder, text) in [
        (Task::builder("test").cpus(0.0), "CPUs"),
        (Task::builder("test").cpus_reserved(-1.0), "CPUs"),
        (Task::builder("test").tick(Duration::ZERO), "1 ms or more"),
        (crowded, "room for 2 customers"),
    ] {
        let error = builder.start().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_machine_is_as_fast_as_its_table_says() {
    let Some(model) = tidegate_meter::machine::model() else { return };
    let factor = MachineFactor::new(0.4).unwrap();
    let table = MachineTable::from_iter([(model, factor)]);
    let task = Task::builder("test").machine(Machine::Table(table)).build().unwrap();
    assert_eq!(task.machine_factor(), factor);
}

#[test]
fn customers_come_later_and_stop_at_the_end_of_the_table() {
    let mut quota = QuotaConfig::default();
    quota.customers_max = 3;
    let task = Task::builder("test").quota(quota).customer("a", Limits::UNLIMITED).build().unwrap();
    assert_eq!(task.customer("b"), CustomerId::DEFAULT);
    let b = task.set_limits("b", Limits::ZERO).unwrap();
    assert_eq!(task.customer("b"), b);
    assert_eq!(task.inner.customer_name(b).as_deref(), Some("b"));
    assert_eq!(task.set_limits("c", Limits::ZERO), None);
    assert_eq!(task.set_limits("a", Limits::ZERO), Some(task.customer("a")));
}

/// Sends one gRPC call that is answered with `status`.
async fn call(task: &Task, path: &str, status: &'static str) {
    let handler = service_fn(move |_: Request<()>| async move {
        let answer = Response::builder().header("grpc-status", status);
        answer.body(Full::<bytes::Bytes>::default())
    });
    let request = Request::builder().uri(path).header("content-type", "application/grpc");
    let request = request.body(()).expect("a request");
    task.layer().layer(handler).oneshot(request).await.expect("an answer");
}

#[tokio::test]
async fn strangers_cannot_fill_the_table_of_methods() {
    let task = Task::builder("test").build().unwrap();
    for n in 0..2_000 {
        call(&task, &format!("/made.Up/{n}"), "12").await;
    }
    let other = task.inner.methods.finder().find("/made.Up/0");
    assert_eq!((other.id, other.is_new), (MethodId(0), true));
    call(&task, "/real.Service/Method", "0").await;
    assert_eq!(task.inner.methods.finder().find("/real.Service/Method").id, MethodId(1));
    assert_eq!(task.gate().counts().completed(), 2_001);
}

#[tokio::test]
async fn methods_have_estimates_of_their_own() {
    let task = Task::builder("test").build().unwrap();
    let handler = service_fn(|request: Request<()>| async move {
        let rounds = if request.uri().path() == "/s/dear" { 2_000_000 } else { 20_000 };
        let sum = (0..rounds).fold(1_u64, |sum, n| core::hint::black_box(sum.rotate_left(7) ^ n));
        let answer = Response::builder().header("grpc-status", "0");
        answer.body(Full::new(bytes::Bytes::from(sum.to_string())))
    });
    let service = task.layer().layer(handler);
    for path in ["/s/dear", "/s/cheap"] {
        for _ in 0..20 {
            let request = Request::builder().uri(path).header("content-type", "application/grpc");
            service.clone().oneshot(request.body(()).unwrap()).await.unwrap();
        }
    }
    let estimate = |path| {
        let method = task.inner.methods.finder().find(path).id;
        task.inner.costs.estimate(CustomerId::DEFAULT, method).as_secs_f64()
    };
    let (dear, cheap) = (estimate("/s/dear"), estimate("/s/cheap"));
    // A hundred times the work; the cheap one's estimate began at the dear one's and is on its way.
    assert!(dear > 3.0 * cheap, "{dear} {cheap}");
}

#[test]
fn limits_of_many_are_set_at_once_and_who_is_removed_is_one_of_everyone_else() {
    let mut quota = QuotaConfig::default();
    quota.customers_max = 3;
    let task = Task::builder("test").quota(quota).build().unwrap();
    let cpus = |n| Limits::total(CostRate::from_cpus(n).unwrap());
    let ids = task.set_limits_of(&[("a", cpus(1.0)), ("b", cpus(2.0)), ("c", cpus(3.0))]);
    assert_eq!(ids, [Some(CustomerId(1)), Some(CustomerId(2)), None]);
    assert_eq!(task.set_limits_of(&[("b", cpus(4.0))]), [Some(CustomerId(2))]);
    assert_eq!(
        ["a", "b", "c"].map(|name| task.limits(name)),
        [cpus(1.0), cpus(4.0), Limits::UNLIMITED]
    );
    assert_eq!(task.remove_customer("a", Limits::ZERO), Some(CustomerId(1)));
    assert_eq!(task.remove_customer("a", Limits::ZERO), None);
    assert_eq!(task.customer("a"), CustomerId::DEFAULT);
    // Connections that carry the number are held by it; no other gets it.
    let now = task.clock().now();
    assert!(task.gate().quota().check(CustomerId(1), Criticality::Critical, now).is_err());
    assert_eq!(task.set_limits_of(&[("d", cpus(1.0))]), [None]);
}

/// A millisecond each, and a quarter of a tick is 2.5 ms.
#[tokio::test]
async fn requests_ask_for_a_look_once_enough_of_them_have_come() {
    let guess = tidegate_core::Cost::from_millis(1);
    let task = || Task::builder("test").cost_guess(guess).tick(Duration::from_millis(10)).build();
    let served = task().unwrap();
    let asked = |task: &Task| task.inner.pacer.is_asked();
    // They hang, so that what they really cost does not come in.
    let handler = service_fn(|_: Request<()>| {
        core::future::pending::<Result<Response<Full<bytes::Bytes>>, core::convert::Infallible>>()
    });
    let mut service = served.layer().layer(handler);
    let mut calls = Vec::new();
    for expected in [false, false, true] {
        service.ready().await.expect("it is ready");
        calls.push(tower::Service::call(&mut service, Request::new(())));
        assert_eq!(asked(&served), expected, "{} have come", calls.len());
    }
    served.inner.pacer.looked();
    calls.push(tower::Service::call(&mut service, Request::new(())));
    assert!(!asked(&served), "what came before the look counts no more");

    let handed_on = task().unwrap();
    let mut tickets = Vec::new();
    for expected in [false, false, true] {
        tickets.push(handed_on.admit(&Request::new(()), None, None));
        assert_eq!(asked(&handed_on), expected, "{} have come", tickets.len());
    }
}

/// Two tasks in one thread, and threads that end with a task's lane.
#[test]
fn lanes_are_those_of_their_task() {
    let tasks = [(); 2].map(|()| Task::builder("test").build().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for (n, task) in tasks.iter().enumerate() {
                    for _ in 0..=n {
                        task.inner.with_lane(|lane| lane.count(crate::metrics::cell::FAILED));
                    }
                }
            });
        }
    });
    assert_eq!(tasks.map(|task| task.snapshot().failed), [2, 4]);
}

#[test]
fn a_lane_inside_a_lane_and_after_the_last_is_still_right() {
    struct AtTheEnd(Task);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            self.0.inner.with_lane(|lane| lane.count(crate::metrics::cell::FAILED));
        }
    }
    thread_local! {
        static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    let task = Task::builder("test").build().unwrap();
    let inside = task.clone();
    std::thread::spawn(move || {
        // Before the lanes are set up, and so destroyed after them.
        LAST.set(Some(AtTheEnd(inside.clone())));
        inside.inner.with_lane(|lane| {
            lane.count(crate::metrics::cell::FAILED);
            inside.inner.with_lane(|lane| lane.count(crate::metrics::cell::FAILED));
        });
    })
    .join()
    .unwrap();
    assert_eq!(task.snapshot().failed, 3);
}
