use super::*;
use crate::config::Config;
use crate::server::grpc::read;
use tokio::sync::mpsc::Receiver;

const T0: Timestamp = Timestamp::from_secs(1);

fn book(lines: &str) -> Book {
    let text = format!("quota:\n  services:\n    search: {lines}\n");
    let service = Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap();
    Book::new(service, 7, false, T0).unwrap()
}

fn hello(task: &str) -> wire::Hello {
    wire::Hello { service: "search".to_owned(), task: task.to_owned(), ..wire::Hello::default() }
}

type Inbox = Receiver<Result<ServerMessage, Status>>;

fn open(book: &mut Book, task: &str) -> (StreamId, Inbox) {
    let (out, inbox) = mpsc::channel(BACKLOG);
    (book.open(&hello(task), out, T0).unwrap(), inbox)
}

/// The last thing that was said on a stream.
fn last(inbox: &mut Inbox) -> Option<Result<ServerMessage, Status>> {
    let mut last = None;
    while let Ok(message) = inbox.try_recv() {
        last = Some(message);
    }
    last
}

fn report(number: u64, usages: Vec<wire::Usage>) -> Said {
    let report = Some(wire::Usages { number, usages });
    read(wire::TaskMessage { report, ..wire::TaskMessage::default() }).unwrap()
}

fn wants(customer: u32, rate: u64) -> wire::Usage {
    wire::Usage { customer, demand: vec![0, 0, rate, 0], ..wire::Usage::default() }
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
    let named: Vec<_> =
        message.customers.iter().map(|c| (c.name.as_str(), c.number, c.unseen[3])).collect();
    // A hundredth, of which each of 64 places has its part.
    assert_eq!(named, [("a", 1, 10_000_000), ("b", 2, 1_000_000), ("", 0, 156_250)]);
    assert!(!message.learning);
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
    assert_eq!((message.answers, message.grants.len()), (1, 1));
    assert_eq!((message.grants[0].customer, message.customers.len()), (1, 0));
    book.tick(T0, 0);
    assert!(inbox.try_recv().is_err(), "there is nothing to say");
    let acked = Some(wire::Generation { epoch: 7, number: message.grants[0].number });
    let said = wire::TaskMessage { acked, ..wire::TaskMessage::default() };
    book.hear(id, &read(said).unwrap(), T0);
    book.hear(id, &report(2, vec![wants(1, 5_000)]), T0);
    book.tick(T0, 0);
    let message = inbox.try_recv().unwrap().unwrap();
    assert_eq!((message.answers, message.grants.len()), (2, 0));
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
    let huge = wire::Usage {
        customer: 1,
        used: vec![u64::MAX; 4],
        demand: vec![u64::MAX; 4],
        has: vec![u64::MAX; 4],
    };
    book.hear(id, &report(2, vec![huge.clone(), huge]), T0);
    book.tick(T0, 0);
    let message = last(&mut inbox).unwrap().unwrap();
    let one = CostRate::from_cpus(1.0).unwrap().as_nanos_per_sec();
    assert!(message.grants.iter().all(|grant| grant.limits.iter().all(|rate| *rate <= one)));
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
            named = message.customers.iter().find(|customer| customer.name == "b").cloned();
            if let Some(grant) = message.grants.last() {
                let acked = Some(wire::Generation { epoch: 7, number: grant.number });
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
