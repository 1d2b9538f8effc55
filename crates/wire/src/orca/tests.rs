use super::*;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use proptest::prelude::*;
use prost::Message;

const FORMATS: [Format; 4] = [Format::Binary, Format::PrefixedBinary, Format::Json, Format::Text];

fn full() -> OrcaLoadReport {
    let map = |name: &str, value| BTreeMap::from([(name.to_owned(), value)]);
    OrcaLoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.25,
        rps: 7,
        request_cost: map("cpu", 0.002),
        utilization: map("disk", 0.125),
        rps_fractional: 80.0,
        eps: 1.5,
        named_metrics: map("queue \"é\"", 3.0),
        application_utilization: 0.75,
    }
}

#[test]
fn bytes_by_hand() {
    let half = [0, 0, 0, 0, 0, 0, 0xE0, 0x3F];
    let mut bytes = vec![0x09];
    bytes.extend(half);
    bytes.extend([0x22, 14, 0x0A, 3]);
    bytes.extend(b"cpu");
    bytes.push(0x11);
    bytes.extend(half);
    let report = OrcaLoadReport {
        cpu_utilization: 0.5,
        request_cost: BTreeMap::from([("cpu".to_owned(), 0.5)]),
        ..OrcaLoadReport::default()
    };
    let (name, value) = encode(&report, Format::Binary).unwrap();
    assert_eq!(name, "endpoint-load-metrics-bin");
    assert_eq!(value.to_str().unwrap(), BASE64_STANDARD.encode(&bytes));
    assert!(value.to_str().unwrap().ends_with('='), "padded");
    for value in [BASE64_STANDARD.encode(&bytes), BASE64_STANDARD_NO_PAD.encode(&bytes)] {
        assert_eq!(decode_binary(value.as_bytes()), Ok(report.clone()));
    }
}

#[test]
fn texts_by_hand() {
    let report = OrcaLoadReport {
        cpu_utilization: 0.5,
        eps: 2.0,
        named_metrics: BTreeMap::from([("queue".to_owned(), 3.0)]),
        ..OrcaLoadReport::default()
    };
    let (name, value) = encode(&report, Format::Text).unwrap();
    assert_eq!(name, "endpoint-load-metrics");
    assert_eq!(value, "TEXT cpu_utilization=0.5,eps=2.0,named_metrics.queue=3.0");
    let (_, value) = encode(&report, Format::Json).unwrap();
    let json = r#"JSON {"cpuUtilization":0.5,"eps":2.0,"namedMetrics":{"queue":3.0}}"#;
    assert_eq!(value, json);
    for same in [
        "TEXT cpu_utilization=0.5, eps=2, named_metrics.queue=3",
        "TEXT cpu_utilization:0.5,eps:2e0,named_metrics.queue:3,unknown=9",
        r#"JSON {"cpu_utilization":"0.5","eps":2,"named_metrics":{"queue":3},"rps":null}"#,
        r#"JSON { "eps" : 2, "namedMetrics":{"queue":3}, "x":[{}], "cpuUtilization":0.5 }"#,
    ] {
        assert_eq!(decode_prefixed(same.as_bytes()), Ok(report.clone()), "{same}");
    }
    let cost = decode_prefixed(b"TEXT request_cost.cpu=0.5,utilization.disk=1").unwrap();
    assert_eq!((cost.request_cost["cpu"], cost.utilization["disk"]), (0.5, 1.0));
}

#[test]
fn what_envoy_drops_is_not_written_as_text() {
    let map = BTreeMap::from([("cpu".to_owned(), 0.5)]);
    let odd = |name: &str| OrcaLoadReport {
        named_metrics: BTreeMap::from([(name.to_owned(), 1.0)]),
        ..OrcaLoadReport::default()
    };
    let rest = OrcaLoadReport::default;
    for (report, what) in [
        (OrcaLoadReport { request_cost: map.clone(), ..rest() }, "request_cost"),
        (OrcaLoadReport { utilization: map, ..rest() }, "utilization"),
        (OrcaLoadReport { rps: 1, ..rest() }, "rps"),
        (odd(""), "a name"),
        (odd("a,b"), "a name"),
        (odd("a=b"), "a name"),
        (odd("a b"), "a name"),
    ] {
        assert_eq!(encode(&report, Format::Text), Err(InvalidReport::NotInText(what)));
        assert!(encode(&report, Format::Json).is_ok() && encode(&report, Format::Binary).is_ok());
    }
}

#[test]
fn one_bad_number_drops_the_report_both_ways() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -f64::MIN_POSITIVE] {
        for field in 0..8 {
            let mut report = full();
            match field {
                0 => report.cpu_utilization = bad,
                1 => report.mem_utilization = bad,
                2 => report.rps_fractional = bad,
                3 => report.eps = bad,
                4 => report.application_utilization = bad,
                5 => _ = report.request_cost.insert("x".to_owned(), bad),
                6 => _ = report.utilization.insert("x".to_owned(), bad),
                _ => _ = report.named_metrics.insert("x".to_owned(), bad),
            }
            let sent = BASE64_STANDARD.encode(report.encode_to_vec());
            assert!(matches!(decode_binary(sent.as_bytes()), Err(InvalidReport::Number(_))));
            for format in FORMATS {
                let mut headers = HeaderMap::new();
                write(&mut headers, &report, format).unwrap_err();
                assert!(headers.is_empty());
            }
        }
    }
    for bad in ["NaN", "nan", "inf", "-inf", "infinity", "-1", "1e999"] {
        for text in [
            format!("TEXT eps={bad}"),
            format!("TEXT cpu_utilization=0.5,named_metrics.x={bad}"),
            format!("JSON {{\"eps\":\"{bad}\"}}"),
            format!("JSON {{\"namedMetrics\":{{\"x\":{bad}}}}}"),
        ] {
            decode_prefixed(text.as_bytes()).unwrap_err();
        }
    }
}

#[test]
fn twice_is_once_too_often() {
    let once = OrcaLoadReport { eps: 1.0, ..OrcaLoadReport::default() }.encode_to_vec();
    let twice = BASE64_STANDARD.encode([once.clone(), once].concat());
    assert_eq!(decode_binary(twice.as_bytes()), Err(InvalidReport::Duplicate("a field")));
    let once = [0x42, 12, 0x0A, 1, b'x', 0x11, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(decode_binary(BASE64_STANDARD.encode(once).as_bytes()).is_ok());
    let twice = BASE64_STANDARD.encode([once, once].concat());
    assert_eq!(decode_binary(twice.as_bytes()), Err(InvalidReport::Duplicate("a name")));
    for text in [
        "TEXT eps=1,eps=1",
        "TEXT named_metrics.x=1,named_metrics.x=2",
        r#"JSON {"eps":1,"eps":1}"#,
        r#"JSON {"rpsFractional":1,"rps_fractional":1}"#,
        r#"JSON {"namedMetrics":{"x":1,"x":1}}"#,
    ] {
        let error = decode_prefixed(text.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidReport::Duplicate(_)), "{text}: {error}");
    }
    let mut headers = HeaderMap::new();
    for _ in 0..2 {
        headers.append(&ENDPOINT_LOAD_METRICS, "TEXT eps=1".parse().unwrap());
    }
    assert_eq!(read(&headers), Err(InvalidReport::Duplicate("the header")));
}

#[test]
fn nonsense_is_an_error() {
    for nonsense in [
        "",
        "BIN",
        "bin CQAAAAAAAOA/",
        "BIN !",
        "BIN CQAAAAAAAOA",
        // A group, a length past the end, a varint without an end.
        "BIN Cw==",
        "BIN In8=",
        "BIN /////////////w==",
        "JSON",
        "JSON ",
        "JSON []",
        "JSON {\"eps\":true}",
        "JSON {\"eps\":1} x",
        "JSON {\"rps\":-1}",
        "TEXT ",
        "TEXT eps",
        "TEXT eps=",
        "TEXT eps=1,",
        "TEXT eps=one",
        "cpu_utilization=0.5",
    ] {
        assert!(decode_prefixed(nonsense.as_bytes()).is_err(), "{nonsense:?}");
    }
    assert_eq!(Faults::from(InvalidReport::Prefix), Fault::BadLoadReport.into());
    let mut headers = HeaderMap::new();
    assert_eq!(read(&headers), Ok(None));
    let long = format!("TEXT x={}", "1".repeat(REPORT_BYTES_MAX));
    headers.insert(&ENDPOINT_LOAD_METRICS, long.parse().unwrap());
    assert_eq!(read(&headers), Err(InvalidReport::TooLong));
}

#[test]
fn a_balancer_sees_what_grpc_would() {
    let load = LoadReport::from(&full());
    assert_eq!(
        load,
        LoadReport { rps: 80.0, eps: 1.5, application_utilization: 0.75, cpu_utilization: 0.5 }
    );
    assert_eq!(LoadReport::from(&OrcaLoadReport::from(&load)), load);
}

fn finite() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter_map("finite", |value| value.is_finite().then_some(value.abs()))
}

fn reports() -> impl Strategy<Value = OrcaLoadReport> {
    let map = || prop::collection::btree_map("[ -~é\\n]{0,6}", finite(), 0..4);
    (prop::array::uniform5(finite()), any::<u64>(), map(), map(), map()).prop_map(
        |(numbers, rps, request_cost, utilization, named_metrics)| OrcaLoadReport {
            cpu_utilization: numbers[0],
            mem_utilization: numbers[1],
            rps,
            request_cost,
            utilization,
            rps_fractional: numbers[2],
            eps: numbers[3],
            named_metrics,
            application_utilization: numbers[4],
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(report in reports()) {
        for format in FORMATS {
            let mut headers = HeaderMap::new();
            if write(&mut headers, &report, format).is_ok() {
                prop_assert_eq!(read(&headers).unwrap(), Some(report.clone()));
                prop_assert_eq!(headers.len(), 1);
            } else {
                prop_assert_eq!(format, Format::Text);
            }
        }
    }
}

#[test]
fn formats_that_are_asked_for() {
    let table = [
        ("BIN", Some(Format::Binary)),
        ("bin", Some(Format::Binary)),
        ("JSON", Some(Format::Json)),
        ("Text", Some(Format::Text)),
        ("yaml", None),
        ("", None),
        ("BIN ", None),
        ("BIN,JSON", None),
    ];
    for (asked, format) in table {
        assert_eq!(Format::asked(asked.as_bytes()), format, "{asked:?}");
    }
}
