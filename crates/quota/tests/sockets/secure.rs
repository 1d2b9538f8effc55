//! Who may do what, by certificates: over real TLS, by those who claim to be others.

use crate::authority::Authority;
use crate::rig::{Served, ask, config, is_limited, task, until};
use core::time::Duration;
use rlqs::rate_limit_quota_response::bucket_action::BucketAction;
use rlqs::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;
use rls::rate_limit_service_client::RateLimitServiceClient;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_quota::etcd::Etcd;
use tidegate_quota::{Client, Election, Server, doorman, status};
use tidegate_wire::proto::doorman as lease;
use tidegate_wire::proto::doorman::capacity_client::CapacityClient;
use tidegate_wire::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_wire::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::{
    self as rlqs, BucketId, RateLimitQuotaUsageReports,
};
use tidegate_wire::proto::envoy::service::ratelimit::v3::{self as rls, RateLimitRequest};
use tidegate_wire::proto::envoy::r#type::v3::rate_limit_strategy::Strategy;
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{Hello, TaskMessage, Usages};
use tonic::Code;

/// The files are read by whoever serves, and are nowhere here.
const CONFIG: &str = "\
quota:
  tls: { cert: none, key: none, client_ca: none }
  operators: [dns:desk.example.org]
  services:
    search:
      tasks: ['spiffe://prod/ns/search/**', dns:search.example.org]
      envoys: [spiffe://prod/ns/edge/sa/envoy]
      default: 1
      hit: 1ms
      customers: { good: 3, bad: { cpu: 2, identities: ['spiffe://prod/ns/bad/sa/*'] } }
      reports: { every: 20ms, round: 5ms }
    ads:
      tasks: [spiffe://prod/ns/ads/sa/server]
      default: 1
      reports: { every: 20ms, round: 5ms }
  doorman:
    clients: ['spiffe://prod/ns/*/sa/crawler']
    servers: [spiffe://prod/ns/doorman/sa/zone]
    resources:
    - identifier_glob: own
      capacity: 10
      clients: [spiffe://prod/ns/bad/sa/crawler]
    - identifier_glob: '*'
      capacity: 1000
      algorithm:
        kind: FAIR_SHARE
        lease_length: 60
        refresh_interval: 1
        learning_mode_duration: -1
";

const SEARCH: &str = "spiffe://prod/ns/search/sa/server";
const ADS: &str = "spiffe://prod/ns/ads/sa/server";
const ENVOY: &str = "spiffe://prod/ns/edge/sa/envoy";
const BAD: &str = "spiffe://prod/ns/bad/sa/web";
const BAD_CRAWLER: &str = "spiffe://prod/ns/bad/sa/crawler";
const CRAWLER: &str = "spiffe://prod/ns/good/sa/crawler";
const ZONE: &str = "spiffe://prod/ns/doorman/sa/zone";

struct Secured {
    authority: Authority,
    server: Server,
    served: Served,
}

async fn secured() -> Secured {
    let authority = Authority::new();
    let state = std::env::temp_dir().join(format!(
        "tidegate-secure-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let _ = std::fs::remove_file(&state);
    let election = Election::alone(Some(&state), UNIX_EPOCH + Duration::from_millis(1)).unwrap();
    let server = Server::start(&config(CONFIG), election, Clock::monotonic()).unwrap();
    let _ = std::fs::remove_file(&state);
    let tls = Some(authority.server().into());
    let served = Served::secured("127.0.0.1:0", server.router(), tls).await;
    Secured { authority, server, served }
}

impl Secured {
    fn url(&self) -> String {
        format!("https://{}", self.served.address)
    }

    async fn channel(&self, shows: &str) -> tonic::transport::Channel {
        self.authority.channel(self.served.address, shows).await
    }

    async fn tasks(&self, service: &str) -> u32 {
        let status = self.server.status().await;
        status.services.iter().find(|found| found.service == service).unwrap().tasks
    }
}

/// One that does not lead knows who does, and no services.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_tells_tasks_and_operators_who_leads_and_strangers_nothing() {
    let authority = Authority::new();
    let server = Server::stand(&config(CONFIG), Clock::monotonic()).unwrap();
    let tls = Some(authority.server().into());
    let served = Served::secured("127.0.0.1:0", server.router(), tls).await;
    let url = format!("https://{}", served.address);
    for (shows, service, sees) in [
        (SEARCH, "", true),
        (SEARCH, "search", true),
        (SEARCH, "ads", false),
        ("desk.example.org", "", true),
        (BAD, "", false),
        ("spiffe://prod/ns/stranger/sa/x", "", false),
    ] {
        let found = status(&url, service, Some(authority.client(shows))).await;
        assert_eq!(found.is_ok(), sees, "{shows} {service}: {found:?}");
        assert!(found.is_ok_and(|found| !found.leads && found.services.is_empty()) == sees);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_reports_for_its_service_and_for_no_other() {
    let secured = secured().await;
    let attach = |task: &tidegate::Task, tls| {
        Client::builder([secured.url()]).tls(tls).attach(task).unwrap()
    };
    for shows in [SEARCH, "search.example.org"] {
        let task = task("search");
        let client = attach(&task, secured.authority.client(shows));
        until("it is told", || is_limited(&task, "good")).await;
        ask(&task, "good", 10);
        client.leave();
    }
    let strangers = Authority::new();
    for (service, tls, why) in [
        ("search", secured.authority.client(ADS), "ns/ads/sa/server may not report for service"),
        ("ads", secured.authority.client(SEARCH), "`tasks` in the server's file"),
        // What is not there looks as what one may not know of.
        ("mail", secured.authority.client(SEARCH), "may not report for service \"mail\""),
        ("search", secured.authority.client("spiffe://test/ns/search/sa/server"), "may not"),
        ("search", secured.authority.client("spiffe://prod/ns/searching"), "may not"),
        ("search", secured.authority.client("xsearch.example.org"), "may not"),
        // A certificate for an address names nobody.
        ("search", secured.authority.client("10.0.0.1"), "names nobody"),
        ("search", secured.authority.client(""), "no certificate was shown"),
        ("search", strangers.client(SEARCH), "invalid peer certificate"),
    ] {
        let task = task(service);
        let client = attach(&task, tls);
        until("it is refused", || client.state().trouble.is_some()).await;
        let trouble = client.state().trouble.unwrap().to_string();
        assert!(trouble.contains(why), "{service}: {trouble}");
        assert!(!is_limited(&task, "good") && client.state().epoch == 0);
    }
    for service in ["search", "ads"] {
        assert_eq!(secured.tasks(service).await, 0, "{service}");
    }
    // Nor does anybody get in who speaks in the clear, or forgets to say who is to be believed.
    let clear = format!("http://{}", secured.served.address);
    let task = task("search");
    let error = Client::builder([&clear]).tls(strangers.client("")).attach(&task).unwrap_err();
    assert!(error.to_string().contains("in the clear"), "{error}");
    for url in [clear, secured.url()] {
        let client = Client::builder([url]).attach(&task).unwrap();
        until("it is refused", || client.state().trouble.is_some()).await;
        assert!(!is_limited(&task, "good"));
    }
}

/// The certificate of any task, and the number of an election that is later than all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_a_zone_is_not_for_whoever_may_report() {
    let secured = secured().await;
    let says = async |shows: &str, reign: u64| {
        let mut client = QuotaClient::new(secured.channel(shows).await);
        let (service, task) = ("search".to_owned(), "zone-a".to_owned());
        let hello = Hello { service, task, reign, ..Hello::default() };
        let hello = TaskMessage { hello: Some(hello), ..TaskMessage::default() };
        let hello = futures_util::stream::iter([hello]);
        let hello = futures_util::StreamExt::chain(hello, futures_util::stream::pending());
        let mut told = client.report(hello).await?.into_inner();
        told.message().await.map(|first| (first.unwrap().welcome.unwrap().task.unwrap(), told))
    };
    let (one, other) = ("spiffe://prod/ns/search/sa/zone", "spiffe://prod/ns/search/sa/zone-too");
    let (place, _first) = says(one, 5).await.unwrap();
    for reign in [0, 5, 6, u64::MAX] {
        let refused = says(SEARCH, reign).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{reign}: {refused}");
        assert!(refused.message().contains("`zones` in the server's file"), "{refused}");
    }
    let (same, _second) = says(one, 6).await.unwrap();
    assert_eq!(same, place, "the zone's next leader has it");
    // One certificate for each host: they have to be named.
    assert_eq!(says(other, 7).await.unwrap_err().code(), Code::PermissionDenied);
    let named = format!("zones: [{one}, {other}]\n      envoys");
    secured.server.reload(&config(&CONFIG.replacen("envoys", &named, 1))).await.unwrap();
    let (same, _third) = says(other, 7).await.unwrap();
    assert_eq!(same, place);
    // And then nobody else stands for others, by whatever name.
    let refused = says(SEARCH, 8).await.unwrap_err();
    assert!(refused.message().contains("may not stand for other tasks"), "{refused}");
}

/// It joined with a weight before it was said who may have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_weighs_more_than_it_may_by_now_has_to_come_again() {
    let secured = secured().await;
    let open = async |task: &str, weight: u32| {
        let mut client = QuotaClient::new(secured.channel(SEARCH).await);
        let (service, task) = ("search".to_owned(), task.to_owned());
        let hello = Hello { service, task, weight, ..Hello::default() };
        let hello = TaskMessage { hello: Some(hello), ..TaskMessage::default() };
        let (say, said) = tokio::sync::oneshot::channel();
        let later = futures_util::stream::once(async { said.await.unwrap_or_default() });
        let later = futures_util::StreamExt::chain(later, futures_util::stream::pending());
        let said = futures_util::StreamExt::chain(futures_util::stream::iter([hello]), later);
        let mut told = client.report(said).await.unwrap().into_inner();
        assert!(told.message().await.unwrap().unwrap().welcome.is_some());
        (say, told)
    };
    let (say, mut heavy) = open("heavy", 9).await;
    let (also, mut light) = open("light", 1).await;
    let named = "zones: ['spiffe://prod/ns/search/sa/zone']\n      envoys";
    secured.server.reload(&config(&CONFIG.replacen("envoys", named, 1))).await.unwrap();
    let report = || Usages { number: 1, ..Usages::default() };
    say.send(TaskMessage { report: Some(report()), ..TaskMessage::default() }).unwrap();
    also.send(TaskMessage { report: Some(report()), ..TaskMessage::default() }).unwrap();
    let ended = loop {
        match heavy.message().await {
            Ok(message) => assert_eq!(message.unwrap().answers, 0),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Aborted, "{ended}");
    while light.message().await.unwrap().unwrap().answers == 0 {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_taken_off_the_list_loses_its_stream() {
    let secured = secured().await;
    let task = task("search");
    let client = Client::builder([secured.url()]).tls(secured.authority.client(SEARCH));
    let client = client.attach(&task).unwrap();
    until("it is told", || is_limited(&task, "good")).await;
    let without = CONFIG.replace("'spiffe://prod/ns/search/**', ", "");
    assert_ne!(without, CONFIG);
    secured.server.reload(&config(&without)).await.unwrap();
    until("it is refused", || client.state().trouble.is_some()).await;
    until("for good", || {
        client.state().trouble.is_some_and(|trouble| trouble.what.contains("may not report"))
    })
    .await;
    assert!(is_limited(&task, "good"), "what it was told holds, as without a server");
    secured.server.reload(&config(CONFIG)).await.unwrap();
    until("it is back", || client.state().server.is_some()).await;
    // The port is what it is.
    let other = CONFIG.replace("cert: none", "cert: other");
    let refused = secured.server.reload(&config(&other)).await.unwrap_err().to_string();
    assert!(refused.contains("restart"), "{refused}");
}

fn question(domain: &str, customer: &str) -> RateLimitRequest {
    let entry = Entry { key: "customer".into(), value: customer.into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn usages(domain: &str, customer: &str) -> RateLimitQuotaUsageReports {
    let bucket = [("customer".to_owned(), customer.to_owned())].into();
    let usage =
        BucketQuotaUsage { bucket_id: Some(BucketId { bucket }), ..BucketQuotaUsage::default() };
    RateLimitQuotaUsageReports { domain: domain.into(), bucket_quota_usages: vec![usage] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_speaks_for_its_customer_and_an_envoy_for_all_of_its_domain() {
    let secured = secured().await;
    for (shows, domain, customer, allowed) in [
        (ENVOY, "search", "good", true),
        (ENVOY, "search", "bad", true),
        (ENVOY, "search", "", true),
        (ENVOY, "ads", "good", false),
        (BAD, "search", "bad", true),
        (BAD, "search", "good", false),
        (BAD, "search", "", false),
        (BAD, "ads", "bad", false),
        (SEARCH, "search", "good", false),
        ("10.0.0.1", "search", "good", false),
    ] {
        let row = format!("{shows} {domain} {customer}");
        let channel = secured.channel(shows).await;
        let mut asking = RateLimitServiceClient::new(channel.clone());
        let answer = asking.should_rate_limit(question(domain, customer)).await;
        assert_eq!(answer.is_ok(), allowed, "{row}: {answer:?}");
        let mut counting = RateLimitQuotaServiceClient::new(channel);
        let reports = futures_util::stream::iter([usages(domain, customer)]);
        let reports = futures_util::StreamExt::chain(reports, futures_util::stream::pending());
        let mut told = counting.stream_rate_limit_quotas(reports).await.unwrap().into_inner();
        let first = told.message().await;
        assert_eq!(first.as_ref().is_ok_and(Option::is_some), allowed, "{row}: {first:?}");
        for code in [answer.err().map(|s| s.code()), first.err().map(|s| s.code())] {
            let expected = match (allowed, shows) {
                (true, _) => None,
                (false, "10.0.0.1") => Some(Code::Unauthenticated),
                (false, _) => Some(Code::PermissionDenied),
            };
            assert_eq!(code, expected, "{row}");
        }
    }
    // One that speaks for others beside itself is refused for all of it.
    let mut asking = RateLimitServiceClient::new(secured.channel(BAD).await);
    let mut both = question("search", "bad");
    both.descriptors.extend(question("search", "good").descriptors);
    assert_eq!(asking.should_rate_limit(both).await.unwrap_err().code(), Code::PermissionDenied);
}

/// How many requests of a customer an Envoy may let through in a second, to begin with.
async fn tokens(secured: &Secured, customer: &str) -> f64 {
    let mut counting = RateLimitQuotaServiceClient::new(secured.channel(ENVOY).await);
    let reports = futures_util::stream::iter([usages("search", customer)]);
    let reports = futures_util::StreamExt::chain(reports, futures_util::stream::pending());
    let mut told = counting.stream_rate_limit_quotas(reports).await.unwrap().into_inner();
    let first = told.message().await.unwrap().unwrap();
    match first.bucket_action[0].bucket_action.unwrap() {
        BucketAction::QuotaAssignmentAction(assigned) => {
            match assigned.rate_limit_strategy.unwrap().strategy.unwrap() {
                Strategy::TokenBucket(bucket) => {
                    let seconds = bucket.fill_interval.unwrap().seconds as f64;
                    f64::from(bucket.tokens_per_fill.unwrap()) / seconds
                }
                other => panic!("{other:?}"),
            }
        }
        other @ BucketAction::AbandonAction(_) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_does_not_say_what_its_own_requests_cost() {
    let secured = secured().await;
    let before = tokens(&secured, "bad").await;
    let mut bad = RateLimitServiceClient::new(secured.channel(BAD).await);
    for by in ["rlqs", "envoy"] {
        let mut cheap = question("search", "bad");
        cheap.descriptors[0].hits_addend = Some(0);
        cheap.descriptors[0].entries.push(Entry { key: "by".into(), value: by.into() });
        for _ in 0..100 {
            bad.should_rate_limit(cheap.clone()).await.unwrap();
        }
    }
    let after = tokens(&secured, "bad").await;
    assert!(after <= before * 1.1, "{before} requests a second, then {after}");
}

fn wants(client: &str, resource: &str, wants: f64) -> lease::GetCapacityRequest {
    let resource =
        lease::ResourceRequest { resource_id: resource.to_owned(), priority: 1, has: None, wants };
    lease::GetCapacityRequest { client_id: client.to_owned(), resource: vec![resource] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_belong_to_whoever_proved_who_they_are_not_to_a_name() {
    let secured = secured().await;
    let mut mine = CapacityClient::new(secured.channel(CRAWLER).await);
    let mut other = CapacityClient::new(secured.channel(BAD_CRAWLER).await);
    let get = async |client: &mut CapacityClient<_>, resource: &str, much: f64| {
        let answer = client.get_capacity(wants("crawler-1", resource, much)).await;
        answer.map(|answer| answer.into_inner().response[0].gets.capacity)
    };
    assert_eq!(get(&mut mine, "db", 900.0).await.unwrap(), 900.0);
    // The same name is another's lease of another, and gives it nothing of mine.
    assert_eq!(get(&mut other, "db", 900.0).await.unwrap(), 100.0);
    let release = || lease::ReleaseCapacityRequest {
        client_id: "crawler-1".to_owned(),
        resource_id: vec!["db".to_owned()],
    };
    other.release_capacity(release()).await.unwrap();
    assert_eq!(get(&mut other, "db", 900.0).await.unwrap(), 100.0, "only its own was released");
    mine.release_capacity(release()).await.unwrap();
    assert_eq!(get(&mut other, "db", 900.0).await.unwrap(), 900.0);

    assert_eq!(get(&mut other, "own", 5.0).await.unwrap(), 5.0);
    let denied = get(&mut mine, "own", 5.0).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("ask for resource \"own\""), "{denied}");
    let mut task = CapacityClient::new(secured.channel(SEARCH).await);
    assert_eq!(get(&mut task, "db", 5.0).await.unwrap_err().code(), Code::PermissionDenied);

    // One that is refused takes nothing from the others; if it is all there is, it is said why.
    let mut both = wants("crawler-3", "own", 5.0);
    both.resource.extend(wants("crawler-3", "mail", 7.0).resource);
    let answer = mine.get_capacity(both).await.unwrap().into_inner().response;
    let had = answer.iter().map(|r| (r.resource_id.as_str(), r.gets.capacity)).collect::<Vec<_>>();
    assert_eq!(had, [("mail", 7.0)]);
    let release = |names: &[&str]| lease::ReleaseCapacityRequest {
        client_id: "crawler-3".to_owned(),
        resource_id: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert!(mine.release_capacity(release(&["own"])).await.is_err());
    mine.release_capacity(release(&["own", "mail"])).await.unwrap();
    assert_eq!(get(&mut other, "mail", 1e6).await.unwrap(), 1_000.0, "it was released");

    // To ask for a thousand clients is for servers.
    let band = lease::PriorityBandAggregate { priority: 1, num_clients: 1_000, wants: 900.0 };
    let many = || lease::GetServerCapacityRequest {
        server_id: "zone".to_owned(),
        resource: vec![lease::ServerCapacityResourceRequest {
            resource_id: "own".to_owned(),
            has: None,
            wants: vec![band],
        }],
    };
    let denied = other.get_server_capacity(many()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let mut zone = CapacityClient::new(secured.channel(ZONE).await);
    assert!(zone.get_server_capacity(many()).await.is_ok());

    // Servers that are elected after each other are one by their name, whatever they show.
    let mut next = CapacityClient::new(secured.channel(&format!("{ZONE}-2")).await);
    let zones = CONFIG.replace(&format!("[{ZONE}]"), &format!("['{ZONE}', '{ZONE}-2']"));
    assert_ne!(zones, CONFIG);
    secured.server.reload(&config(&zones)).await.unwrap();
    let has = async |zone: &mut CapacityClient<_>| {
        let answer = zone.get_server_capacity(many()).await.unwrap().into_inner();
        answer.response[0].gets.capacity
    };
    let release = |client: &str| lease::ReleaseCapacityRequest {
        client_id: client.to_owned(),
        resource_id: vec!["own".to_owned()],
    };
    other.release_capacity(release("crawler-1")).await.unwrap();
    assert_eq!((has(&mut zone).await, has(&mut next).await), (10.0, 10.0));
    assert_eq!(get(&mut other, "own", 5.0).await.unwrap(), 0.0);
    next.release_capacity(release("zone")).await.unwrap();
    assert_eq!(get(&mut other, "own", 5.0).await.unwrap(), 5.0);

    // And the client of this crate.
    let client = doorman::Client::builder([secured.url()]).id("crawler-2");
    let client = client.tls(secured.authority.client(CRAWLER)).start().unwrap();
    let limiter = client.resource("db", 50.0, 1);
    until("it has a lease", || limiter.capacity() > 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_everything_and_tasks_their_own() {
    let secured = secured().await;
    let see = async |shows: &str, service: &str| {
        let seen = status(&secured.url(), service, Some(secured.authority.client(shows))).await;
        let names = |seen: tidegate_wire::proto::tidegate::quota::v1::StatusResponse| {
            seen.services.into_iter().map(|service| service.service).collect::<Vec<_>>()
        };
        seen.map(names).map_err(|error| error.to_string())
    };
    assert_eq!(see("desk.example.org", "").await.unwrap(), ["ads", "search"]);
    assert_eq!(see(SEARCH, "").await.unwrap(), ["search"]);
    assert_eq!(see(SEARCH, "search").await.unwrap(), ["search"]);
    for (shows, service, why) in [
        (SEARCH, "ads", "may not see how service \"ads\" stands"),
        (BAD, "", "`operators` in the server's file says who may"),
        (BAD, "nothing", "may not see"),
        ("10.0.0.1", "", "names nobody"),
        ("", "", "no certificate was shown"),
    ] {
        let error = see(shows, service).await.unwrap_err();
        assert!(error.contains(why), "{shows} {service}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_lists_that_is_served_without_certificates_lets_nobody_in() {
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config(CONFIG), election, Clock::monotonic()).unwrap();
    let served = Served::at("127.0.0.1:0", server.router()).await;
    let channel = tonic::transport::Endpoint::from_shared(served.url()).unwrap();
    let mut client = QuotaClient::new(channel.connect().await.unwrap());
    let hello = Hello { service: "search".into(), task: "t".into(), ..Hello::default() };
    let hello = TaskMessage { hello: Some(hello), ..TaskMessage::default() };
    let refused = client.report(futures_util::stream::iter([hello])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
}

/// An etcd that is spoken to with the wrong certificates says so in the middle of a handshake, and
/// whoever runs the server has to know which file to change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_etcd_refuses_are_told_with_what_to_do() {
    let (authority, strangers) = (Authority::new(), Authority::new());
    let tls = Some(authority.server().into());
    let served = Served::secured("127.0.0.1:0", axum::Router::new(), tls).await;
    let url = format!("https://{}", served.address);
    let file = std::env::temp_dir().join(format!("tidegate-stranger-{}", std::process::id()));
    std::fs::create_dir_all(&file).unwrap();
    strangers.write(&file, "quota.example.org");
    let mut stranger = authority.client("");
    let (cert, key) = (file.join("cert.pem"), file.join("key.pem"));
    stranger.identity = Some(tidegate_tls::Identity::new(cert.clone(), key));
    let shown = format!("refuses the certificate in {}", cert.display());
    for (client, what, next) in [
        (authority.client(""), "wants a certificate and is shown none", "`election.tls.cert`"),
        (stranger, shown.as_str(), "`election.tls.cert`"),
        (strangers.client("quota.example.org"), "is not believed", "`election.tls.ca`"),
    ] {
        let etcd = Etcd::secured([&url], Some(client), None).unwrap();
        // Whatever is noticed first, the alert or a connection that is cut.
        for _ in 0..5 {
            let told = etcd.get("/q", Duration::from_secs(5)).await.unwrap_err().to_string();
            assert!(told.contains(&format!("etcd at {url}/")), "{told}");
            assert!(told.contains(what) && told.contains(next), "{told}");
        }
    }
    std::fs::remove_dir_all(&file).unwrap();
}
