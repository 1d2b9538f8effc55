use super::*;
use crate::config::Config;
use crate::message::{grants, write_usages};
use crate::server::grpc::read;
use crate::server::stream::{BACKLOG, Words};
use prost::Message as _;
use tidegate_core::fleet::Usage;
use tokio::sync::mpsc::{self, Receiver};

const T0: Timestamp = Timestamp::from_secs(1);

fn book(lines: &str) -> Book {
    let text = format!("quota:\n  services:\n    search: {lines}\n");
    let service = Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap();
    Book::new(service, 7, false, T0).unwrap()
}

fn hello(task: &str) -> wire::Hello {
    wire::Hello { service: "search".to_owned(), task: task.to_owned(), ..wire::Hello::default() }
}

type Inbox = Receiver<Words>;

fn customers(message: &ServerMessage) -> Vec<wire::Customer> {
    wire::Directory::decode(message.directory.clone()).unwrap().customers
}

fn open(book: &mut Book, task: &str) -> (StreamId, Inbox) {
    let (out, inbox) = mpsc::channel(BACKLOG);
    (book.open(&hello(task), out, T0).unwrap(), inbox)
}

/// The last thing that was said on a stream.
fn last(inbox: &mut Inbox) -> Option<Words> {
    let mut last = None;
    while let Ok(message) = inbox.try_recv() {
        last = Some(message);
    }
    last
}

fn report(number: u64, usages: Vec<Usage>) -> Said {
    let report = Some(write_usages(number, usages));
    read(wire::TaskMessage { report, ..wire::TaskMessage::default() }).unwrap()
}

fn wants(customer: u32, rate: u64) -> Usage {
    let demand = [0, 0, rate, 0].map(CostRate::from_nanos_per_sec);
    let used = [CostRate::ZERO; 4];
    Usage { customer: CustomerId(customer), used, demand, has: None }
}

#[test]
fn a_welcome_names_all_customers_and_what_to_agree_on() {
    let mut book = book("{ default: 1, customers: { a: 64, b: 6.4 }, reports: { every: 2s } }");
    let (_, mut inbox) = open(&mut book, "t");
    let message = inbox.try_recv().unwrap().unwrap();
    let welcome = message.welcome.unwrap();
    assert_eq!((welcome.joined, welcome.report_every_ms), (true, 2_000));
    assert_eq!((welcome.hold_ms, welcome.tau_ms), (60_000, 8_000));
    assert_eq!(welcome.task.unwrap().epoch, 7);
    let customers = customers(&message);
    let named: Vec<_> = customers.iter().map(|c| (c.name.as_str(), c.number, c.aside[3])).collect();
    // A hundredth, of which each of 64 places has its part.
    assert_eq!(named, [("a", 1, 640_000_000), ("b", 2, 64_000_000), ("", 0, 10_000_000)]);
    assert_eq!(message.places, 64);
    assert!(!message.learning);
}

/// Memory is an account of its own: it is shown, and moves no limit of CPU time.
#[test]
fn limits_of_memory_are_in_the_status_and_nowhere_else() {
    let mut book = book("{ default: 1, customers: { a: 64, b: 64 } }");
    let (_, mut inbox) = open(&mut book, "t");
    let _ = last(&mut inbox);
    let text = "quota: { services: { search: { capacity: { memory: 4KiB }, default: 1, customers: \
                { a: { cpu: 64, memory: 1KiB }, b: 64 } } } }";
    let config = Config::parse("test.yaml", text).unwrap();
    book.reload(config.services["search"].clone());
    book.tick(T0, 0);
    assert!(last(&mut inbox).is_none(), "no task is told of it");
    let status = book.status("search");
    let customers = status.customers.iter().map(|found| (found.name.as_str(), found.memory));
    assert_eq!(customers.collect::<Vec<_>>(), [("", 0), ("a", 1_024), ("b", 0)]);
    assert_eq!((status.memory, status.capacity), (4_096, 0));
}

#[test]
fn only_what_changed_is_said_and_once_a_round() {
    let mut book = book("{ default: 1, customers: { a: 64, b: 64 } }");
    let (id, mut inbox) = open(&mut book, "t");
    let _ = last(&mut inbox);
    book.hear(id, &report(1, vec![wants(1, 5_000)]), T0);
    assert!(inbox.try_recv().is_err(), "everything waits for the round");
    book.tick(T0, 0);
    let message = inbox.try_recv().unwrap().unwrap();
    let granted = message.grants.unwrap();
    assert_eq!((message.answers, granted.customers.as_slice()), (1, &[1][..]));
    assert!(message.directory.is_empty() && message.acknowledge);
    book.tick(T0, 0);
    assert!(inbox.try_recv().is_err(), "there is nothing to say");
    let acked = Some(wire::Generation { epoch: 7, number: granted.number });
    let said = wire::TaskMessage { acked, ..wire::TaskMessage::default() };
    book.hear(id, &read(said).unwrap(), T0);
    book.hear(id, &report(2, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    let message = inbox.try_recv().unwrap().unwrap();
    assert_eq!((message.answers, message.grants), (2, None));
}

#[test]
fn reports_that_are_replayed_end_the_stream() {
    let mut book = book("{ default: 1 }");
    let (id, mut inbox) = open(&mut book, "t");
    for number in [1, 2, 5] {
        book.hear(id, &report(number, vec![]), T0);
    }
    book.tick(T0, 0);
    assert_eq!(last(&mut inbox).unwrap().unwrap().answers, 5);
    book.hear(id, &report(5, vec![]), T0);
    let status = last(&mut inbox).unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("report 5 came after report 5"), "{status}");
    assert!(inbox.is_closed(), "and that was it");
}

#[test]
fn whatever_is_reported_counts_within_bounds() {
    let mut book = book("{ default: 1, customers: { a: 1 }, sizes: { customers_per_task: 2 } }");
    let (id, mut inbox) = open(&mut book, "t");
    // A million customers that nobody has configured are everyone else.
    let crowd = (0..1_000_000).map(|n| wants(n + 2, 1)).collect();
    book.hear(id, &report(1, crowd), T0);
    let huge = Usage {
        customer: CustomerId(1),
        used: [CostRate::MAX; 4],
        demand: [CostRate::MAX; 4],
        has: Some(Limits::UNLIMITED),
    };
    book.hear(id, &report(2, vec![huge, huge]), T0);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    let one = CostRate::from_cpus(1.0).unwrap();
    let granted = message.grants.unwrap();
    assert!(grants(&granted).unwrap().all(|(_, limits)| limits.whole() <= one));
    let status = book.status("search");
    assert_eq!(status.customers.len(), 2);
    assert!(status.customers.iter().all(|customer| customer.tasks <= 1));
}

#[test]
fn a_new_customer_waits_for_the_place_of_one_that_is_still_taken_back() {
    let mut book = book("{ default: 1, customers: { a: 64 }, sizes: { customers: 2 } }");
    let (id, mut inbox) = open(&mut book, "t");
    book.hear(id, &report(1, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    let mut service = book.service.clone();
    let limits = service.customers.remove("a").unwrap();
    service.customers.insert("b".to_owned(), limits);
    book.reload(service);
    assert_eq!(book.status("search").customers.len(), 1, "a's place is still taken");
    // The task acknowledges whatever it is told, and its grant is taken back.
    let mut named = None;
    for number in 2..8 {
        while let Ok(Ok(message)) = inbox.try_recv() {
            named = customers(&message).into_iter().find(|customer| customer.name == "b");
            if let Some(granted) = &message.grants {
                let acked = Some(wire::Generation { epoch: 7, number: granted.number });
                let said = wire::TaskMessage { acked, ..wire::TaskMessage::default() };
                book.hear(id, &read(said).unwrap(), T0);
            }
        }
        book.hear(id, &report(number, vec![]), T0);
        book.tick(T0, 0);
        if named.is_some() {
            break;
        }
    }
    assert_eq!(named.unwrap().number, 1, "it has the place");
    assert_eq!(book.status("search").customers[1].name, "b");
}

#[test]
fn a_task_that_does_not_read_loses_its_stream_and_resumes() {
    let mut book = book("{ default: 1, sizes: { tasks: 1 } }");
    let (id, mut inbox) = open(&mut book, "t");
    for number in 1..20 {
        book.hear(id, &report(number, vec![]), T0);
        book.tick(T0, 0);
    }
    assert_eq!(book.status("search").tasks, 0);
    let welcome = inbox.try_recv().unwrap().unwrap().welcome.unwrap();
    let (out, mut inbox) = mpsc::channel(BACKLOG);
    let resumes = wire::Hello { resumes: welcome.task, ..hello("t") };
    book.open(&resumes, out, T0).unwrap();
    let again = last(&mut inbox).unwrap().unwrap().welcome.unwrap();
    assert_eq!((again.joined, again.task), (false, welcome.task));
    // There is room for one only.
    let (out, _inbox) = mpsc::channel(BACKLOG);
    let status = book.open(&hello("another"), out, T0).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().contains("tasks_max"), "{status}");
}

#[test]
fn whoever_leaves_is_gone_and_whoever_closes_may_come_back() {
    let mut book = book("{ default: 1, sizes: { tasks: 2 } }");
    let (gone, inbox) = open(&mut book, "a");
    let (away, _inbox) = open(&mut book, "b");
    book.hear(gone, &Said { leaves: true, ..Said::default() }, T0);
    assert!(inbox.is_closed());
    book.close(away);
    assert_eq!(book.status("search").tasks, 0);
    open(&mut book, "c");
    let (out, _inbox) = mpsc::channel(BACKLOG);
    assert!(book.open(&hello("d"), out, T0).is_err(), "b counts until its lease has ended");
}

#[test]
fn a_leader_that_comes_before_another_is_told_what_to_do() {
    for (elected, remedy) in [(false, "name a file `state`"), (true, "Delete the key `base`")] {
        let mut book = book("{ default: 1 }").elected(elected);
        let (out, _inbox) = mpsc::channel(BACKLOG);
        let status = book.open(&wire::Hello { epoch_seen: 8, ..hello("t") }, out, T0).unwrap_err();
        assert!(status.message().contains(remedy), "{status}");
    }
}

/// A report that comes in the middle of a round is answered by the next, which knows all of it.
#[test]
fn a_report_is_answered_by_the_first_round_that_began_after_it() {
    let mut book = book("{ default: 1, customers: { a: 64 } }");
    let (id, mut inbox) = open(&mut book, "t");
    let _ = last(&mut inbox);
    book.begin(T0, 0);
    assert!(book.step(T0) && book.is_amid());
    book.hear(id, &report(1, vec![wants(1, 5_000)]), T0);
    while book.step(T0) {}
    assert!(last(&mut inbox).is_none());
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    assert_eq!((message.answers, message.grants.unwrap().customers), (1, vec![1]));
}

/// What is told names the last report that the round has seen, though there is a later one.
#[test]
fn limits_that_go_out_answer_no_report_that_came_after_the_round_began() {
    let mut book = book("{ default: 1, customers: { a: 64 } }");
    let (id, mut inbox) = open(&mut book, "t");
    let _ = last(&mut inbox);
    book.hear(id, &report(1, vec![wants(1, 5_000)]), T0);
    book.begin(T0, 0);
    assert!(book.step(T0) && book.is_amid());
    book.hear(id, &report(2, vec![wants(1, 9_000_000_000)]), T0);
    book.hear(id, &report(3, vec![wants(1, 9_000_000_000)]), T0);
    while book.step(T0) {}
    let message = last(&mut inbox).unwrap().unwrap();
    assert_eq!((message.answers, message.grants.is_some()), (1, true));
    // There is nothing to tell but that the others were seen, too.
    book.tick(T0, 0);
    assert_eq!(last(&mut inbox).unwrap().unwrap().answers, 3);
    book.tick(T0, 0);
    assert!(last(&mut inbox).is_none(), "once is enough");
}

/// What each of these tasks is granted when it has reported.
fn granted(book: &mut Book, tasks: &mut [(StreamId, Inbox)], number: u64) -> Vec<u64> {
    for (task, _) in tasks.iter() {
        book.hear(*task, &report(number, vec![wants(1, 5_000)]), T0);
    }
    book.tick(T0, 0);
    let granted = |(_, inbox): &mut (StreamId, Inbox)| {
        let told = last(inbox).unwrap().unwrap().grants.unwrap();
        grants(&told).unwrap().next().unwrap().1.whole().as_nanos_per_sec()
    };
    tasks.iter_mut().map(granted).collect()
}

/// What the file says of who may stand for others may have changed since it joined.
#[test]
fn whoever_resumes_weighs_what_it_may_by_now() {
    let mut book = book("{ default: 1, customers: { a: 64 }, sizes: { weight: 10 } }");
    let open = |book: &mut Book, hello: &wire::Hello, alone| {
        let (out, inbox) = mpsc::channel(BACKLOG);
        let reporter = Reporter { alone, ..Reporter::default() };
        (book.open_for(hello, &reporter, out, T0).unwrap(), inbox)
    };
    let heavy = wire::Hello { weight: 3, ..hello("t") };
    let (id, mut inbox) = open(&mut book, &heavy, false);
    let welcome = last(&mut inbox).unwrap().unwrap().welcome.unwrap();
    let other = open(&mut book, &hello("u"), false);
    let before = granted(&mut book, &mut [(id, inbox), other], 1);
    assert!(before[0] > before[1] * 3 / 2, "{before:?}");
    // It comes back, and may no longer stand for others.
    let resumes = wire::Hello { resumes: welcome.task, ..heavy };
    let first = open(&mut book, &resumes, true);
    let after = granted(&mut book, &mut [first], 1);
    assert!(after[0] < before[0] * 9 / 10, "{before:?}, then {after:?}");
}

/// More pairs than one step looks at, in a fleet that is told only when it has reported.
#[test]
fn in_a_large_fleet_answers_leave_amid_the_round_that_has_seen_all_of_a_report() {
    const TASKS: usize = 3 * STEP_PAIRS / CUSTOMERS;
    const CUSTOMERS: usize = 128;
    let customers: Vec<_> = (0..CUSTOMERS).map(|n| format!("c{n}: 64")).collect();
    let customers = customers.join(", ");
    let mut book = book(&format!("{{ default: 1, customers: {{ {customers} }} }}"));
    let mut tasks: Vec<_> = (0..TASKS).map(|n| open(&mut book, &format!("t{n}"))).collect();
    book.save_messages(true);
    let lines = |rate| (1..=CUSTOMERS as u32).map(|customer| wants(customer, rate)).collect();
    let answers = |book: &mut Book, tasks: &mut Vec<(StreamId, Inbox)>| {
        book.step(T0);
        let heard =
            tasks.iter_mut().map(|(_, inbox)| last(inbox).map_or(0, |m| m.unwrap().answers));
        heard.enumerate().filter(|(_, number)| *number > 0).collect::<Vec<_>>()
    };
    for (task, _) in &tasks {
        book.hear(*task, &report(1, lines(1)), T0);
    }
    book.begin(T0, 0);
    while book.is_amid() {
        answers(&mut book, &mut tasks);
    }
    // Two come before the round, and two when a third of it is done.
    for task in [1, 0] {
        book.hear(tasks[task].0, &report(2, lines(2)), T0);
    }
    book.begin(T0, 0);
    assert!(answers(&mut book, &mut tasks).is_empty() && book.is_amid());
    for task in [3, 2] {
        book.hear(tasks[task].0, &report(2, lines(2)), T0);
        // A second one changes nothing: the first is answered, and then the last.
        book.hear(tasks[task].0, &report(3, lines(2)), T0);
    }
    assert!(answers(&mut book, &mut tasks).is_empty() && book.is_amid());
    assert_eq!(answers(&mut book, &mut tasks), [(0, 2), (1, 2)]);
    while book.is_amid() {
        assert!(answers(&mut book, &mut tasks).is_empty());
    }
    book.begin(T0, 0);
    assert_eq!(answers(&mut book, &mut tasks), [(2, 3), (3, 3)]);
    assert!(book.is_amid(), "and not only at its end");
}

/// Both changes wait for the round in which the task hears of them.
#[test]
fn a_customer_that_is_changed_and_then_removed_within_a_round_is_gone() {
    let mut book = book("{ default: 1, customers: { a: 64, b: 64 } }");
    let (_, mut inbox) = open(&mut book, "t");
    let _ = last(&mut inbox);
    let mut service = book.service.clone();
    for name in ["a", "b"] {
        let limits = Limits::total(CostRate::from_cpus(32.0).unwrap());
        service.customers.insert(name.to_owned(), limits);
    }
    book.reload(service.clone());
    service.customers.remove("a");
    book.reload(service.clone());
    // Somebody new comes in the same round.
    service.customers.insert("c".to_owned(), service.customers["b"]);
    book.reload(service);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    assert_eq!(message.gone, [1]);
    let named: Vec<_> = customers(&message).into_iter().map(|c| (c.name, c.number)).collect();
    assert_eq!(named, [("b".to_owned(), 2), ("c".to_owned(), 1)], "it has the place");
}

/// Thousands of streams and of customers: what is the same for all is worked out once.
#[test]
fn customers_that_are_gone_are_struck_off_once_for_all_streams() {
    let mut book = book("{ default: 1, customers: { a: 64, b: 64, c: 64 } }");
    let mut inboxes = ["t", "u"].map(|task| open(&mut book, task).1);
    for inbox in &mut inboxes {
        let _ = last(inbox);
    }
    let mut service = book.service.clone();
    for limits in service.customers.values_mut() {
        *limits = Limits::total(CostRate::from_cpus(32.0).unwrap());
    }
    book.reload(service.clone());
    service.customers.remove("b");
    book.reload(service);
    book.tick(T0, 0);
    let [first, second] = inboxes.map(|mut inbox| last(&mut inbox).unwrap().unwrap());
    let named: Vec<_> = customers(&first).into_iter().map(|c| c.name).collect();
    assert_eq!((named, &first.gone), (vec!["a".to_owned(), "c".to_owned()], &vec![2]));
    assert_eq!((&second.directory, &second.gone), (&first.directory, &first.gone));
    assert_eq!(second.directory.as_ptr(), first.directory.as_ptr());
}

/// A zone's file has limits for as long as nobody above has told others. What it says of capacity
/// and memory always counts.
#[test]
fn limits_from_above_stay_when_the_file_changes_and_the_rest_of_it_counts() {
    let service = |lines: &str| {
        let text = format!("quota:\n  services:\n    search: {lines}\n");
        Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap()
    };
    let shown = |book: &Book| {
        let status = book.status("search");
        let shown = status
            .customers
            .into_iter()
            .map(|customer| (customer.name, customer.limits[3] / 1_000_000_000, customer.memory));
        (status.capacity / 1_000_000_000, status.memory, shown.collect::<Vec<_>>())
    };
    let named = |name: &str, cpus, memory| (name.to_owned(), cpus, memory);
    let mut book = book("{ default: 1 }");
    book.reload(service("{ default: 2, customers: { own: 3 } }"));
    assert_eq!(shown(&book), (0, 0, vec![named("", 2, 0), named("own", 3, 0)]));
    let cpus = |cpus: f64| Limits::total(CostRate::from_cpus(cpus).unwrap());
    let customers = BTreeMap::from([("a".to_owned(), cpus(5.0))]);
    book.provide(Provided { default: cpus(4.0), customers: customers.clone() });
    assert_eq!(shown(&book), (0, 0, vec![named("", 4, 0), named("a", 5, 0)]));
    book.reload(service(
        "{ capacity: { cpu: 40, memory: 4KiB }, default: { cpu: 9, memory: 1KiB }, customers: { \
         own: 9, a: { cpu: 9, memory: 2KiB } } }",
    ));
    assert_eq!(shown(&book), (40, 4_096, vec![named("", 4, 1_024), named("a", 5, 2_048)]));
    // And what is told later takes nothing of that back.
    book.provide(Provided { default: cpus(6.0), customers });
    assert_eq!(shown(&book), (40, 4_096, vec![named("", 6, 1_024), named("a", 5, 2_048)]));
}

/// A busy leader tells a task once for each of its reports.
#[test]
fn a_leader_that_saves_messages_waits_for_reports_and_acknowledgements_with_them() {
    let mut book = book("{ default: 1, customers: { a: 64 } }");
    book.save_messages(true);
    let (first, mut inbox) = open(&mut book, "t");
    let (second, mut other) = open(&mut book, "u");
    let _ = (last(&mut inbox), last(&mut other));
    book.hear(first, &report(1, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    assert!(message.grants.is_some() && !message.acknowledge);
    // Others want so much that the first gets less: it hears of that when it reports.
    let acked = Some(wire::Generation { epoch: 7, number: message.grants.unwrap().number });
    book.hear(first, &read(wire::TaskMessage { acked, ..Default::default() }).unwrap(), T0);
    book.hear(second, &report(1, vec![wants(1, u64::MAX / 2)]), T0);
    book.tick(T0, 0);
    assert!(last(&mut inbox).is_none() && last(&mut other).is_some());
    book.hear(first, &report(2, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    assert_eq!((message.answers, message.grants.is_some()), (2, true));
}

#[test]
fn who_takes_anothers_place_is_told_what_that_had_by_a_busy_leader_too() {
    let mut book = book("{ default: 1, customers: { a: 64 } }");
    let elect = |book: &mut Book, reign| {
        let (out, inbox) = mpsc::channel(BACKLOG);
        (book.open(&wire::Hello { reign, ..hello("zone") }, out, T0).unwrap(), inbox)
    };
    let (first, mut inbox) = elect(&mut book, 1);
    book.hear(first, &report(1, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    assert!(last(&mut inbox).unwrap().unwrap().grants.is_some());
    book.save_messages(true);
    // It has nothing to report before that.
    let (_, mut inbox) = elect(&mut book, 2);
    assert!(!inbox.try_recv().unwrap().unwrap().welcome.unwrap().joined);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    assert_eq!(message.grants.unwrap().customers, [1]);
}

#[test]
fn nobody_resumes_what_another_has_joined_by_its_name() {
    let mut book = book("{ default: 1, customers: { a: 64 } }");
    let (_, mut inbox) = open(&mut book, "t");
    let task = inbox.try_recv().unwrap().unwrap().welcome.unwrap().task;
    for (name, joined) in [("t", false), ("u", true)] {
        let (out, mut inbox) = mpsc::channel(BACKLOG);
        book.open(&wire::Hello { resumes: task, ..hello(name) }, out, T0).unwrap();
        let welcome = inbox.try_recv().unwrap().unwrap().welcome.unwrap();
        assert_eq!((welcome.joined, welcome.task != task), (joined, joined), "{name}");
    }
}
