//! Tables from RFC 9111 and RFC 5861.

use super::*;
use proptest::prelude::*;

/// An evening in 2023, 22:13:20, in seconds since 1970; times below count from it.
const EVENING: u64 = 1_700_000_000;

fn at(seconds: u64) -> Moment {
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(EVENING + seconds);
    Moment { wall, here: Duration::from_secs(seconds) }
}

fn headers(lines: &str) -> HeaderMap {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
    };
    lines.split("; ").filter(|line| !line.is_empty()).map(field).collect()
}

fn dated(seconds: u64) -> String {
    let second = 22 * 3_600 + 13 * 60 + 20 + seconds;
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("Tue, 14 Nov 2023 {hour}:{minute:02}:{:02} GMT", second % 60)
}

fn freshness(answer: &str) -> Freshness {
    Freshness::of(&headers(answer), at(100), at(100), Duration::ZERO)
}

#[test]
fn lifetimes() {
    let date = format!("date: {}", dated(100));
    for (answer, lifetime) in [
        ("", 0),
        ("cache-control: max-age=60", 60),
        ("cache-control: max-age=60, s-maxage=10", 10),
        ("cache-control: s-maxage=90, max-age=60", 90),
        (&*format!("expires: {}; {date}", dated(130)), 30),
        (&*format!("expires: {}; {date}", dated(50)), 0),
        (&*format!("expires: {}; {date}; cache-control: max-age=5", dated(130)), 5),
        (&*format!("expires: 0; {date}"), 0),
        (&*format!("expires: tomorrow; {date}"), 0),
        (&*format!("last-modified: {}; {date}", dated(0)), 0),
    ] {
        assert_eq!(freshness(answer).lifetime, lifetime, "{answer}");
    }
}

/// RFC 9111, 4.2.3.
#[test]
fn ages() {
    // Asked, came, and now; then the age.
    for (answer, asked, came, now, age) in [
        (String::new(), 100, 100, 100, 0),
        (String::new(), 100, 100, 160, 60),
        // It took long, and nobody knows when it was made.
        ("age: 7".to_owned(), 100, 103, 103, 10),
        (format!("date: {}", dated(80)), 100, 103, 103, 23),
        (format!("date: {}; age: 50", dated(80)), 100, 103, 113, 63),
        // A clock that is ahead of ours makes nothing younger.
        (format!("date: {}", dated(500)), 100, 100, 110, 10),
        ("age: soon".to_owned(), 100, 100, 110, 10),
    ] {
        let found = Freshness::of(&headers(&answer), at(asked), at(came), Duration::ZERO);
        assert_eq!(found.age(at(now)), age, "{answer} at {now}");
    }
}

/// Somebody sets the clock of the machine, back or ahead, while a copy lies here.
#[test]
fn how_long_a_copy_is_here_is_not_told_by_the_wall() {
    let found = freshness("cache-control: max-age=60");
    for set in [0, 10, 1_000_000] {
        let moved = |seconds: u64| Moment { wall: at(set).wall, ..at(seconds) };
        assert_eq!(found.age(moved(130)), 30, "set to {set}");
        let verdict = |now| found.verdict(&Directives::default(), Occasion::Failed, now);
        assert_eq!(verdict(moved(159)), Verdict::Fresh, "set to {set}");
        assert_eq!(verdict(moved(160)), Verdict::No, "set to {set}");
    }
}

#[test]
fn when_a_copy_may_be_given_out() {
    use Occasion::{Busy, Failed};
    use Verdict::{Fresh, No, Revalidate, Stale};
    let sie = "cache-control: max-age=600, stale-if-error=1200";
    let swr = "cache-control: max-age=600, stale-while-revalidate=30";
    // What the answer said, what the caller says, the age, and what then.
    for (answer, caller, age, failed, busy) in [
        ("cache-control: max-age=600", "", 599, Fresh, Fresh),
        ("cache-control: max-age=600", "", 600, No, No),
        // RFC 5861, 4.1: usable for 600 s, and for 1,200 s after that on errors.
        (sie, "", 599, Fresh, Fresh),
        (sie, "", 600, Stale, No),
        (sie, "", 1_800, Stale, No),
        (sie, "", 1_801, No, No),
        // RFC 5861, 3.1: for 30 s more while somebody asks anew.
        (swr, "", 629, Stale, Revalidate),
        (swr, "", 630, Stale, Revalidate),
        (swr, "", 631, No, No),
        // Forbidden by the answer, whatever else it allows (RFC 9111, 4.2.4).
        ("cache-control: max-age=600, stale-if-error=1200, must-revalidate", "", 599, Fresh, Fresh),
        ("cache-control: max-age=600, stale-if-error=1200, must-revalidate", "", 600, No, No),
        ("cache-control: max-age=600, stale-if-error=1200, proxy-revalidate", "", 600, No, No),
        ("cache-control: s-maxage=600, stale-if-error=1200", "", 599, Fresh, Fresh),
        ("cache-control: s-maxage=600, stale-if-error=1200", "", 600, No, No),
        ("cache-control: s-maxage=600", "cache-control: max-stale", 600, No, No),
        // Allowed by the caller.
        ("cache-control: max-age=600", "cache-control: max-stale", 9_999, Stale, Stale),
        ("cache-control: max-age=600", "cache-control: max-stale=5", 605, Stale, Stale),
        ("cache-control: max-age=600", "cache-control: max-stale=5", 606, No, No),
        ("cache-control: max-age=600", "cache-control: stale-if-error=9", 609, Stale, No),
        ("cache-control: max-age=600", "cache-control: stale-if-error=9", 610, No, No),
        // Not wanted by the caller.
        (sie, "cache-control: no-cache", 1, No, No),
        (sie, "pragma: no-cache", 1, No, No),
        (sie, "cache-control: no-store", 1, No, No),
        (sie, "cache-control: max-age=10", 10, Fresh, Fresh),
        (sie, "cache-control: max-age=10", 11, No, No),
        (sie, "cache-control: max-age=5000", 700, No, No),
        (sie, "cache-control: max-age=5000, max-stale=200", 700, Stale, Stale),
        (sie, "cache-control: min-fresh=100", 500, Fresh, Fresh),
        (sie, "cache-control: min-fresh=100", 501, No, No),
        (sie, "cache-control: min-fresh=100", 700, No, No),
    ] {
        let (found, caller) = (freshness(answer), Directives::of(&headers(caller)));
        let verdict = |on| found.verdict(&caller, on, at(100 + age));
        assert_eq!((verdict(Failed), verdict(Busy)), (failed, busy), "{answer}, {caller:?}, {age}");
    }
}

#[test]
fn whoever_runs_the_proxy_may_allow_it() {
    let none = Directives::default();
    for (answer, verdict) in [
        ("cache-control: max-age=10", Verdict::Stale),
        ("", Verdict::Stale),
        // The answer knows better.
        ("cache-control: max-age=10, stale-if-error=5", Verdict::No),
        ("cache-control: max-age=10, must-revalidate", Verdict::No),
    ] {
        let found = Freshness::of(&headers(answer), at(0), at(0), Duration::from_secs(60));
        assert_eq!(found.verdict(&none, Occasion::Failed, at(50)), verdict, "{answer}");
    }
}

#[test]
fn what_may_be_kept() {
    for (request, status, answer, keep) in [
        ("", 200, "cache-control: max-age=5", true),
        ("", 200, "cache-control: max-age=0, stale-if-error=5", true),
        ("", 200, "", false),
        ("", 200, "cache-control: max-age=0", false),
        ("", 206, "cache-control: max-age=5; content-range: bytes 0-1/2", false),
        ("", 200, "cache-control: max-age=5; content-range: bytes 0-1/2", false),
        ("", 404, "cache-control: max-age=5", false),
        ("", 500, "cache-control: max-age=5", false),
        ("", 200, "cache-control: max-age=5, no-store", false),
        ("", 200, "cache-control: max-age=5, no-cache", false),
        ("", 200, "cache-control: max-age=5, no-cache=\"set-cookie\"", false),
        ("", 200, "cache-control: max-age=5, private", false),
        ("", 200, "cache-control: max-age=5, private=\"x\"", false),
        ("cache-control: no-store", 200, "cache-control: max-age=5", false),
        ("cache-control: no-cache", 200, "cache-control: max-age=5", true),
        // RFC 9111, 3.5.
        ("authorization: Basic x", 200, "cache-control: max-age=5", false),
        ("authorization: Basic x", 200, "cache-control: max-age=5, public", true),
        ("authorization: Basic x", 200, "cache-control: max-age=5, must-revalidate", true),
        ("authorization: Basic x", 200, "cache-control: s-maxage=5", true),
        // RFC 9111, 4.1.
        ("", 200, "cache-control: max-age=5; vary: accept", true),
        ("", 200, "cache-control: max-age=5; vary: *", false),
        ("", 200, "cache-control: max-age=5; vary: accept, *", false),
        ("", 200, "cache-control: max-age=5; vary: a b", false),
        ("", 200, "cache-control: max-age=5; set-cookie: a=b", false),
        ("", 200, "cache-control: max-age=5; content-type: application/grpc+proto", false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let found = may_keep(&headers(request), status, &headers(answer), &freshness(answer));
        assert_eq!(found, keep, "{request} {status} {answer}");
    }
}

#[test]
fn requests_choose_by_what_answers_vary_by() {
    let answer = headers("vary: Accept, accept-language; vary: accept");
    let asked = headers("accept: a/b, c/d; accept-language: de; host: x");
    let chosen = selected(&asked, &answer).unwrap();
    assert_eq!(chosen.len(), 2);
    for (request, same) in [
        ("accept: a/b, c/d; accept-language: de", true),
        ("accept: a/b,c/d; accept-language: de; host: other", true),
        ("accept: a/b; accept: c/d; accept-language: de", true),
        ("accept: c/d, a/b; accept-language: de", false),
        ("accept: a/b, c/d", false),
        ("", false),
    ] {
        assert_eq!(is_selected(&headers(request), &chosen), same, "{request}");
    }
    assert!(is_selected(&headers(""), &selected(&headers(""), &answer).unwrap()));
}

#[test]
fn who_may_have_a_copy_and_who_makes_them_wrong() {
    for (method, request, copy, wrong) in [
        (Method::GET, "", true, false),
        (Method::HEAD, "", true, false),
        (Method::GET, "range: bytes=0-1", true, false),
        (Method::GET, "if-none-match: \"a\"", true, false),
        (Method::GET, "if-match: \"a\"", false, false),
        (Method::GET, "if-unmodified-since: x", false, false),
        (Method::GET, "if-range: \"a\"; range: bytes=0-1", false, false),
        (Method::OPTIONS, "", false, false),
        (Method::POST, "", false, true),
        (Method::PUT, "", false, true),
        (Method::DELETE, "", false, true),
        (Method::PATCH, "", false, true),
        (Method::from_bytes(b"PURGE").unwrap(), "", false, true),
    ] {
        assert_eq!(may_have_copy(&method, &headers(request)), copy, "{method} {request}");
        assert_eq!(is_unsafe(&method), wrong, "{method}");
    }
}

proptest! {
    /// Whatever was said, no copy is given out stale that must not be, and none gets younger.
    #[test]
    fn must_revalidate_is_never_stale(
        words in "[a-z=, 0-9-]{0,40}",
        caller in "[a-z=, 0-9-]{0,40}",
        age in 0_u64..10_000,
        if_error in 0_u64..10_000,
    ) {
        let mut answer = HeaderMap::new();
        let text = format!("max-age=60, stale-if-error=9999, must-revalidate, {words}");
        answer.insert(http::header::CACHE_CONTROL, HeaderValue::from_str(&text).unwrap());
        let mut request = HeaderMap::new();
        request.insert(http::header::CACHE_CONTROL, HeaderValue::from_str(&caller).unwrap());
        let found = Freshness::of(&answer, at(0), at(0), Duration::from_secs(if_error));
        for on in [Occasion::Failed, Occasion::Busy] {
            let verdict = found.verdict(&Directives::of(&request), on, at(age));
            prop_assert!(verdict == Verdict::No || verdict == Verdict::Fresh);
        }
        prop_assert!(found.age(at(age + 1)) > found.age(at(age)));
    }
}
