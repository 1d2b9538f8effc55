use super::*;
use crate::access::Access;
use crate::config::Config;
use crate::election::fence::Fence;
use crate::server::book::Book;
use arc_swap::ArcSwap;
use tidegate::clock::Hand;
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::{self as rlqs, BucketId};
use tidegate_wire::proto::envoy::r#type::v3::rate_limit_strategy::Strategy;
use tokio::task::JoinHandle;
use tokio::time::sleep;

type BucketQuotaUsage = rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;
type Id = BTreeMap<String, String>;

/// A service of which a request costs 10 ms, and the time.
struct Stage {
    names: Names,
    owner: Owner,
    clock: Clock,
    hand: Hand,
}

impl Stage {
    fn set(lines: &str, learns: bool) -> Self {
        let text = format!("quota:\n  services:\n    search: {{ hit: 10ms, {lines} }}\n");
        let service = Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap();
        let (clock, hand) = Clock::manual();
        let book = Book::new(service.clone(), 1, learns, clock.now()).unwrap();
        let fence = Fence::never();
        let owner = Owner::start("search".to_owned(), book, &service, fence, clock.clone());
        Self { names: Names::default(), owner, clock, hand }
    }

    /// Time passes, for the runtime and for the clock alike.
    async fn pass(&self, millis: u64) {
        for _ in 0..millis / 20 {
            self.hand.advance(Duration::from_millis(20));
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// An Envoy opens a stream with a report.
    fn open(&self, first: Vec<BucketQuotaUsage>) -> Peer {
        self.open_as("edge", first)
    }

    fn open_as(&self, name: &str, first: Vec<BucketQuotaUsage>) -> Peer {
        let (reports, from) = mpsc::channel(64);
        let (out, told) = mpsc::channel(BACKLOG);
        let access = Arc::new(ArcSwap::from_pointee(Access::Open));
        let pass = Pass::new(&access, Caller::default(), "search");
        let (owner, clock) = (self.owner.clone(), self.clock.clone());
        let reports_in = ReceiverStream::new(from).map(Ok);
        let first =
            RateLimitQuotaUsageReports { domain: "search".into(), bucket_quota_usages: first };
        let name = self.names.take("search", name, names::OF_NAME_MAX).unwrap();
        let guest = Guest { pass, voice: Voice::Everyone, name };
        let served =
            tokio::spawn(async move { serve(owner, clock, guest, first, reports_in, &out).await });
        Peer { reports, told, served, assigned: BTreeMap::new(), abandoned: 0 }
    }

    /// CPUs that the book counts for a customer.
    async fn counted(&self, customer: &str) -> f64 {
        let customers = self.owner.status().await.unwrap().customers;
        let found = customers.iter().find(|found| found.name == customer).unwrap();
        found.counted.last().map_or(0.0, |nanos| *nanos as f64 / 1e9)
    }
}

/// The other end: an Envoy.
struct Peer {
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    told: mpsc::Receiver<Result<RateLimitQuotaResponse, Status>>,
    served: JoinHandle<Result<(), Status>>,
    assigned: BTreeMap<Id, Strategy>,
    abandoned: usize,
}

fn usage(customer: &str, allowed: u64, denied: u64, elapsed: i64) -> BucketQuotaUsage {
    let bucket = Id::from([("customer".to_owned(), customer.to_owned())]);
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        time_elapsed: Some(prost_types::Duration { seconds: elapsed, nanos: 0 }),
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    }
}

impl Peer {
    async fn report(&mut self, usages: Vec<BucketQuotaUsage>) {
        let (domain, bucket_quota_usages) = (String::new(), usages);
        let report = RateLimitQuotaUsageReports { domain, bucket_quota_usages };
        self.reports.send(report).await.unwrap();
    }

    /// Takes in what it was told.
    fn read(&mut self) {
        while let Ok(Ok(response)) = self.told.try_recv() {
            for action in response.bucket_action {
                let id = action.bucket_id.unwrap().bucket;
                match action.bucket_action.unwrap() {
                    bucket_action::BucketAction::QuotaAssignmentAction(assigned) => {
                        let strategy = assigned.rate_limit_strategy.unwrap().strategy.unwrap();
                        self.assigned.insert(id, strategy);
                    }
                    bucket_action::BucketAction::AbandonAction(_) => {
                        self.assigned.remove(&id);
                        self.abandoned += 1;
                    }
                }
            }
        }
    }

    /// CPUs that it may use for a customer; nothing if it was told nothing.
    fn may_use(&self, customer: &str) -> Option<f64> {
        let id = Id::from([("customer".to_owned(), customer.to_owned())]);
        self.assigned.get(&id).map(cpus)
    }

    fn may_use_in_all(&self) -> f64 {
        self.assigned.values().map(cpus).sum()
    }
}

fn cpus(strategy: &Strategy) -> f64 {
    match strategy {
        Strategy::TokenBucket(bucket) => {
            let tokens = f64::from(bucket.tokens_per_fill.unwrap());
            0.01 * tokens / bucket.fill_interval.as_ref().unwrap().seconds as f64
        }
        Strategy::BlanketRule(rule) => {
            if *rule == 1 {
                0.0
            } else {
                f64::INFINITY
            }
        }
        Strategy::RequestsPerTimeUnit(_) => panic!("Envoy does not keep to that"),
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_nobody_has_configured_share_one_default() {
    let stage = Stage::set("default: 1, customers: { good: 2 }", false);
    let strangers = |allowed, denied, elapsed| {
        let names = (0..100).map(|n| format!("made-up-{n}"));
        names.map(|name| usage(&name, allowed, denied, elapsed)).collect::<Vec<_>>()
    };
    let mut envoy = stage.open(strangers(1, 0, 0));
    for _ in 0..6 {
        stage.pass(5_000).await;
        envoy.read();
        let all = envoy.may_use_in_all();
        assert!(all <= 1.0, "{all} of 1 CPU");
        envoy.report(strangers(5, 500, 5)).await;
    }
    let all = envoy.may_use_in_all();
    assert!(all > 0.8, "{all} of 1 CPU");
}

#[tokio::test(start_paused = true)]
async fn buckets_without_requests_make_room_and_too_many_end_no_stream() {
    let stage = Stage::set("default: 1, customers: { good: 2 }", false);
    let names = |count: usize| (0..count).map(|n| format!("made-up-{n}")).collect::<Vec<_>>();
    let say = |count, allowed, elapsed| {
        let all = names(count);
        all.iter().map(|name| usage(name, allowed, 0, elapsed)).collect::<Vec<_>>()
    };
    let mut envoy = stage.open(say(3_000, 1, 0));
    stage.pass(1_000).await;
    envoy.report(say(5_000, 1, 0)).await;
    stage.pass(1_000).await;
    assert!(!envoy.served.is_finished(), "it goes on");
    // A customer finds room, whatever strangers there are.
    envoy.report(vec![usage("good", 100, 0, 0)]).await;
    stage.pass(2_000).await;
    envoy.read();
    assert!(envoy.may_use("good").is_some_and(|cpus| cpus > 1.0), "{:?}", envoy.may_use("good"));
    let all = envoy.may_use_in_all() - envoy.may_use("good").unwrap();
    assert!(all <= 1.0, "{all} of 1 CPU");
    // Envoy reports all that it remembers, also what is not used any more.
    for _ in 0..14 {
        let all = envoy.assigned.keys().filter_map(|id| id.get("customer"));
        let count = |name: &str| if name == "good" { 500 } else { 0 };
        let all = all.map(|name| usage(name, count(name), 0, 5)).collect();
        envoy.report(all).await;
        stage.pass(5_000).await;
        envoy.read();
    }
    assert!(!envoy.served.is_finished());
    assert!(envoy.abandoned >= 5_000, "{}", envoy.abandoned);
    assert_eq!(envoy.assigned.len(), 1, "that of the good one");
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_too_long_is_denied_and_kept_nowhere() {
    let stage = Stage::set("default: 1, customers: { good: 2 }", false);
    let long = "x".repeat(2_000);
    let mut envoy = stage.open(vec![usage(&long, 5, 0, 0), usage("good", 5, 0, 0)]);
    stage.pass(3_000).await;
    envoy.read();
    assert!(!envoy.served.is_finished());
    assert_eq!(envoy.may_use(&long), Some(0.0));
    assert!(envoy.may_use("good").unwrap() > 0.0);
}

#[tokio::test(start_paused = true)]
async fn the_first_report_of_a_bucket_that_lives_on_is_over_the_time_it_says() {
    let stage = Stage::set("default: 1, customers: { good: 20 }", false);
    // A thousand requests of 10 ms each in five seconds: two CPUs.
    let _envoy = stage.open(vec![usage("good", 1_000, 0, 5)]);
    stage.pass(2_000).await;
    let customers = stage.owner.status().await.unwrap().customers;
    let good = customers.iter().find(|found| found.name == "good").unwrap();
    assert_eq!(good.used, [0, 0, 2_000_000_000, 0]);
}

/// A line that is cut, and an Envoy that goes on and comes back.
#[tokio::test(start_paused = true)]
async fn what_an_envoy_was_told_counts_when_its_stream_ends_and_is_its_own_when_it_is_back() {
    let stage = Stage::set("default: 1, customers: { good: 2 }", false);
    let mut first = stage.open_as("a", vec![usage("good", 1, 0, 0)]);
    for _ in 0..3 {
        first.report(vec![usage("good", 750, 0, 5)]).await;
        stage.pass(5_000).await;
    }
    first.read();
    let held = first.may_use("good").unwrap();
    assert!(held > 1.5, "{held} of 2 CPUs");
    drop(first);
    // Another one wants all of it.
    let mut second = stage.open_as("b", vec![usage("good", 1, 0, 0)]);
    for _ in 0..3 {
        second.report(vec![usage("good", 100, 5_000, 5)]).await;
        stage.pass(5_000).await;
        second.read();
        let both = held + second.may_use("good").unwrap();
        assert!(both <= 2.0, "{both} of 2 CPUs");
    }
    let mut again = stage.open_as("a", vec![usage("good", 750, 0, 5)]);
    stage.pass(1_000).await;
    again.read();
    // Both want more than half of it, and nobody had it meanwhile.
    let back = again.may_use("good").unwrap();
    assert!(back > 0.9, "{back} of {held}");
    // It does not come back a second time: with what it was told, its part ends.
    drop(again);
    for _ in 0..65 {
        second.report(vec![usage("good", 500, 5_000, 5)]).await;
        stage.pass(5_000).await;
        second.read();
    }
    assert!(second.may_use("good").unwrap() > 1.9, "{:?}", second.may_use("good"));
    assert!(stage.counted("good").await <= 2.0);
}

/// By the leader before it may use 1.6 of 2 CPUs, and does use 1.2.
#[tokio::test(start_paused = true)]
async fn an_election_cuts_no_envoy_that_comes_with_what_it_has() {
    let stage = Stage::set("default: 1, customers: { good: 2 }", true);
    let mut envoy = stage.open(vec![usage("good", 600, 0, 5), usage("new", 1, 0, 0)]);
    for _ in 0..23 {
        stage.pass(5_000).await;
        envoy.read();
        assert_eq!(envoy.may_use("good"), None, "what it has still holds");
        assert!(envoy.may_use("new").is_some(), "what is new is limited");
        let counted = stage.counted("good").await;
        assert!((1.2..=2.0).contains(&counted), "{counted}");
        envoy.report(vec![usage("good", 600, 0, 5), usage("new", 5, 0, 5)]).await;
    }
    stage.pass(5_000).await;
    assert!(!stage.owner.status().await.unwrap().learning);
    envoy.read();
    assert!(envoy.may_use("good").unwrap() > 1.6, "{:?}", envoy.may_use("good"));
}

/// It came up while nobody led, was told nothing, and lets everything through.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_has_more_than_its_limit_is_told_though_the_leader_learns() {
    let stage = Stage::set("default: 1, customers: { bad: 2 }", true);
    let mut envoy = stage.open(vec![usage("bad", 5_000, 0, 5)]);
    stage.pass(5_000).await;
    envoy.read();
    let told = envoy.may_use("bad").unwrap();
    assert!((1.8..=2.0).contains(&told), "{told} of 2 CPUs");
}
