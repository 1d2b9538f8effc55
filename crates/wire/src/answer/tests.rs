use super::*;
use crate::reject::{DecisionId, Reject};
use http::Version;
use std::time::UNIX_EPOCH;
use tidegate_core::Criticality;
use tidegate_core::decision::{Cause, Rejection};

const DONT: Outcome = Outcome::Refused(Advice::DontRetry);
const ELSEWHERE: Outcome = Outcome::Refused(Advice::RetryElsewhere);

const fn after(secs: u64) -> Outcome {
    Outcome::Refused(Advice::RetryAfter(Duration::from_secs(secs)))
}

/// Sun, 06 Nov 1994 08:49:37 GMT.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(784_111_777)
}

fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(n, v)| (n.parse().unwrap(), HeaderValue::from_static(v))).collect()
}

#[test]
fn plain_servers_are_understood() {
    const STOP: (&str, &str) = ("x-envoy-ratelimited", "true");
    for (status, headers, outcome) in [
        (200, &[][..], Outcome::Served),
        (200, &[("retry-after", "9")], Outcome::Served),
        (304, &[], Outcome::Served),
        (404, &[], Outcome::Served),
        (408, &[], Outcome::Served),
        (500, &[], Outcome::Failed),
        (502, &[], Outcome::Failed),
        (504, &[], Outcome::NoAnswer),
        (503, &[], ELSEWHERE),
        (503, &[STOP], DONT),
        (503, &[("x-envoy-ratelimited", "false")], ELSEWHERE),
        // Does not stop Envoy either.
        (503, &[("x-envoy-overloaded", "true")], ELSEWHERE),
        (503, &[("retry-after", "2")], after(2)),
        (503, &[("retry-after", "2"), STOP], DONT),
        (503, &[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")], after(10)),
        (503, &[("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT")], after(0)),
        (429, &[], DONT),
        (429, &[("retry-after", "120")], after(120)),
        (429, &[("retry-after", "120"), STOP], DONT),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = read(status, &map(headers), None, Protocol::Http, now);
        assert_eq!(answer.outcome, outcome, "{status} {headers:?}");
        let failure = is_failure(status, &map(headers), Protocol::Http);
        assert_eq!(Some(failure), outcome.is_failure(), "{status} {headers:?}");
        let advice = if let Outcome::Refused(advice) = outcome { Some(advice) } else { None };
        assert_eq!((answer.advice, answer.faults), (advice, Faults::NONE));
    }
}

#[test]
fn advice_without_sense_is_counted() {
    for (status, value, outcome) in [(503, "soon", ELSEWHERE), (429, "-1", DONT)] {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = read(status, &map(&[("retry-after", value)]), None, Protocol::Http, now);
        assert_eq!((answer.outcome, answer.faults), (outcome, Fault::BadAdvice.into()));
    }
    for nonsense in ["", "soon", "1.5", "2147483648", "-2147483649"] {
        let mut trailers = map(&[("grpc-status", "14")]);
        trailers.insert("grpc-retry-pushback-ms", nonsense.parse().unwrap());
        let answer = grpc(&trailers);
        assert_eq!((answer.outcome, answer.faults), (DONT, Fault::BadAdvice.into()));
    }
}

fn grpc(trailers: &HeaderMap) -> Answer {
    let answer = read(StatusCode::OK, &HeaderMap::new(), Some(trailers), Protocol::Grpc, now);
    let failure = is_failure(StatusCode::OK, trailers, Protocol::Grpc);
    assert_eq!(failure, answer.outcome.is_failure() == Some(true), "{trailers:?}");
    answer
}

#[test]
fn every_code_of_grpc() {
    for code in Code::ALL {
        let outcome = match code as u8 {
            1 => Outcome::Abandoned,
            4 => Outcome::NoAnswer,
            8 => DONT,
            14 => ELSEWHERE,
            2 | 13 | 15 => Outcome::Failed,
            _ => Outcome::Served,
        };
        let mut trailers = HeaderMap::new();
        trailers.insert(&GRPC_STATUS, code.value());
        assert_eq!(grpc(&trailers).outcome, outcome, "{code:?}");
        // The same without a body.
        let answer = read(StatusCode::OK, &trailers, None, Protocol::Grpc, now);
        assert_eq!(answer.outcome, outcome, "{code:?}");
    }
}

#[test]
fn pushback_is_obeyed() {
    const PUSH: &str = "grpc-retry-pushback-ms";
    let advised = |millis| Some(Advice::RetryAfter(Duration::from_millis(millis)));
    for (status, pushback, advice) in [
        ("14", "-1", Some(Advice::DontRetry)),
        ("14", "0", advised(0)),
        ("14", "250", advised(250)),
        ("8", "250", advised(250)),
        ("8", "-7", Some(Advice::DontRetry)),
        ("13", "-1", Some(Advice::DontRetry)),
        ("0", "-1", None),
    ] {
        let answer = grpc(&map(&[("grpc-status", status), (PUSH, pushback)]));
        assert_eq!(answer.advice, advice, "{status} {pushback}");
        if let Outcome::Refused(refused) = answer.outcome {
            assert_eq!(Some(refused), advice);
        }
    }
}

#[test]
fn a_proxy_that_answers_grpc_in_http_is_understood() {
    let headers = map(&[("content-type", "text/plain")]);
    for (status, outcome) in [
        (200, Outcome::Failed),
        (404, Outcome::Served),
        (429, DONT),
        (500, Outcome::Failed),
        (503, ELSEWHERE),
        (504, Outcome::NoAnswer),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = read(status, &headers, None, Protocol::Grpc, now);
        assert_eq!(answer.outcome, outcome, "{status}");
        assert_eq!(is_final(status, &headers, Protocol::Grpc), status != 200);
        assert!(is_final(status, &headers, Protocol::Http));
    }
}

#[test]
fn lame_ducks_are_recognised() {
    for (status, headers) in [
        (503, &[("x-tidegate-reason", "lame_duck")][..]),
        (503, &[("x-envoy-immediate-health-check-fail", "true")]),
        (200, &[("x-envoy-immediate-health-check-fail", "")]),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert!(read(status, &map(headers), None, Protocol::Http, now).lame_duck, "{headers:?}");
    }
    let answer = read(StatusCode::OK, &map(&[]), None, Protocol::Http, now);
    assert!(!answer.lame_duck);
    let other = map(&[("x-tidegate-reason", "overloaded"), ("connection", "close")]);
    let answer = read(StatusCode::SERVICE_UNAVAILABLE, &other, None, Protocol::Http, now);
    assert!(!answer.lame_duck);
}

#[test]
fn what_we_refuse_is_understood_as_meant() {
    let wait = Duration::from_secs(3);
    for reason in Reason::ALL {
        for advice in [Advice::RetryElsewhere, Advice::DontRetry, Advice::RetryAfter(wait)] {
            let rejection = Rejection {
                reason,
                advice,
                criticality: Criticality::Critical,
                cause: Some(Cause::Quota { opens_in: wait }),
            };
            let outcome = match reason {
                Reason::DeadlinePassed => Outcome::NoAnswer,
                Reason::OutOfQuota => DONT,
                _ => Outcome::Refused(advice),
            };
            for protocol in [Protocol::Http, Protocol::Grpc] {
                let response =
                    Reject::new(&rejection, DecisionId(1)).respond(protocol, Version::HTTP_2);
                let answer = read(response.status(), response.headers(), None, protocol, now);
                assert_eq!(answer.outcome, outcome, "{rejection} {protocol:?}");
                assert_eq!(answer.reason, Some(reason));
                assert_eq!(answer.lame_duck, reason == Reason::LameDuck);
                assert!(answer.faults.is_empty());
            }
        }
    }
}
