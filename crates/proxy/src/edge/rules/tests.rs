use super::*;
use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

fn rule(change: impl FnOnce(&mut Rule)) -> Rule {
    let mut rule = Rule::new();
    change(&mut rule);
    rule
}

fn path(text: &str) -> PathPattern {
    text.parse().unwrap()
}

fn identity(text: &str) -> IdentityPattern {
    IdentityPattern::parse(text).unwrap()
}

fn header(name: &'static str, value: Option<&'static str>) -> (HeaderName, Option<HeaderValue>) {
    (HeaderName::from_static(name), value.map(HeaderValue::from_static))
}

/// A shop: whoever pays matters most, partners may say themselves, reports can wait.
fn shop() -> Rules {
    let rules = vec![
        rule(|r| {
            r.path = Some(path("/checkout/**"));
            r.methods = vec![Method::POST, Method::PUT];
            r.criticality = Some(CriticalPlus);
        }),
        rule(|r| {
            r.identity = Some(identity("spiffe://partner/till"));
            r.ceiling = Some(CriticalPlus);
        }),
        rule(|r| {
            r.identity = Some(identity("spiffe://partner/**"));
            r.criticality = Some(SheddablePlus);
            r.ceiling = Some(Critical);
        }),
        rule(|r| {
            r.host = Some("reports.example".to_owned());
            r.criticality = Some(Sheddable);
        }),
        rule(|r| {
            r.header = Some(header("x-plan", Some("gold")));
            r.criticality = Some(Critical);
        }),
        rule(|r| {
            r.header = Some(header("x-batch", None));
            r.criticality = Some(Sheddable);
        }),
        rule(|r| {
            r.path = Some(path("/"));
            r.criticality = Some(Critical);
        }),
    ];
    assert!(rules.iter().all(|rule| rule.fault().is_none()));
    Rules::new(rules, SheddablePlus)
}

/// What a request of this method, host and path counts as.
fn judge(
    rules: &Rules,
    (method, host, path): (&str, &str, &str),
    who: Option<&str>,
    headers: &[(&'static str, &str)],
) -> Criticality {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    let (method, known) = (method.parse().unwrap(), rules.known(who));
    let about = About { method: &method, host: Some(host), path, headers: &map, known: &known };
    rules.judge(&about, &Incoming::of(&map))
}

#[test]
fn the_first_rule_that_fits_counts() {
    let claim = ("x-criticality", "CRITICAL_PLUS");
    let till = Some("spiffe://partner/till");
    let other = Some("spiffe://partner/other");
    for (asked, who, headers, level) in [
        (("POST", "shop", "/checkout"), None, &[][..], CriticalPlus),
        (("POST", "shop", "/checkout/7/pay"), None, &[], CriticalPlus),
        (("POST", "shop", "/checkouts"), None, &[], SheddablePlus),
        (("GET", "shop", "/checkout/7"), None, &[], SheddablePlus),
        (("GET", "shop", "/"), None, &[], Critical),
        (("GET", "shop", "/search"), None, &[], SheddablePlus),
        // Nobody is believed without a rule that says so.
        (("GET", "shop", "/search"), None, &[claim], SheddablePlus),
        (("GET", "shop", "/search"), Some("spiffe://other/till"), &[claim], SheddablePlus),
        (("GET", "shop", "/search"), Some("dns:partner"), &[claim], SheddablePlus),
        (("GET", "shop", "/search"), till, &[claim], CriticalPlus),
        (("GET", "shop", "/search"), till, &[("x-criticality", "SHEDDABLE")], Sheddable),
        (("GET", "shop", "/search"), till, &[], SheddablePlus),
        (("GET", "shop", "/search"), till, &[("x-criticality", "HIGH")], SheddablePlus),
        (("GET", "shop", "/search"), other, &[claim], Critical),
        (("GET", "shop", "/search"), other, &[], SheddablePlus),
        (("GET", "reports.example", "/"), None, &[], Sheddable),
        (("GET", "Reports.Example:8443", "/"), None, &[], Sheddable),
        (("GET", "x.reports.example", "/search"), None, &[], SheddablePlus),
        (("GET", "shop", "/search"), None, &[("x-plan", "gold")], Critical),
        (("GET", "shop", "/search"), None, &[("x-plan", "tin"), ("x-plan", "gold")], Critical),
        (("GET", "shop", "/search"), None, &[("x-plan", "golden")], SheddablePlus),
        (("GET", "shop", "/search"), None, &[("x-batch", "")], Sheddable),
        // A priority lowers, whoever asks, and never raises.
        (("POST", "shop", "/checkout"), None, &[("priority", "u=6")], SheddablePlus),
        (("GET", "shop", "/search"), till, &[claim, ("priority", "u=5")], SheddablePlus),
        (("GET", "shop", "/search"), None, &[("priority", "u=0")], SheddablePlus),
        (("GET", "reports.example", "/"), None, &[("priority", "u=7")], Sheddable),
    ] {
        assert_eq!(judge(&shop(), asked, who, headers), level, "{asked:?} {who:?} {headers:?}");
    }
}

#[test]
fn to_hide_gains_nothing() {
    for hidden in [
        "/checkout/../report",
        "/checkout/..;/report",
        "/checkout/.;x/report",
        "/checkout;x/1",
        "/checkout/./pay",
        "/checkout//pay",
        "//checkout/pay",
        "/checkout/%2e%2E/report",
        "/checkout/..%2freport",
        "/checkout%2Fpay",
        "/%63heckout/pay",
        "/checkout/..\\report",
        "/checkout/%5c..%5creport",
        "/checkout/%252e",
        "/checkout/%",
        "/checkout/%2",
        "/checkout/%zz",
        "/checkout/%00",
        "/checkout/..",
    ] {
        assert_eq!(judge(&shop(), ("POST", "shop", hidden), None, &[]), Sheddable, "{hidden}");
        let till = Some("spiffe://partner/till");
        let claim = ("x-criticality", "CRITICAL_PLUS");
        let found = judge(&shop(), ("POST", "shop", hidden), till, &[claim]);
        assert_eq!(found, Sheddable, "{hidden}");
    }
    for plain in
        ["/checkout/", "/checkout/a.b", "/checkout/...", "/checkout/%20x", "/checkout/%C3%A4"]
    {
        assert_eq!(judge(&shop(), ("POST", "shop", plain), None, &[]), CriticalPlus, "{plain}");
    }
    // Where no rule names a path there is nothing to hide from.
    let rules = Rules::new(Vec::new(), Critical);
    assert_eq!(judge(&rules, ("GET", "shop", "/a/../b"), None, &[]), Critical);
}

#[test]
fn patterns_of_paths() {
    for (pattern, fits, misses) in [
        ("/", &["/"][..], &["/a", "//"][..]),
        ("/**", &["/", "/a", "/a/b"], &["*"]),
        ("/a", &["/a"], &["/a/", "/ab", "/A"]),
        ("/a/", &["/a/"], &["/a", "/a/b"]),
        ("/a/**", &["/a", "/a/", "/a/b/c"], &["/ab", "/", "a"]),
        ("/shop.Cart/Pay", &["/shop.Cart/Pay"], &["/shop.Cart/Paying"]),
    ] {
        let pattern: PathPattern = pattern.parse().unwrap();
        for path in fits {
            assert!(pattern.fits(path), "{pattern:?} {path}");
        }
        for path in misses {
            assert!(!pattern.fits(path), "{pattern:?} {path}");
        }
    }
    for wrong in ["", "a", "/*", "/a/*/b", "/a/**/b", "/a?b", "/a b", "/a/../b", "/%61", "**"] {
        let error = wrong.parse::<PathPattern>().unwrap_err().to_string();
        assert!(error.contains("; right: "), "{wrong}: {error}");
    }
}

#[test]
fn rules_that_give_away_too_much_are_refused() {
    let gold = || header("x-plan", Some("gold"));
    for (rule, wrong) in [
        (rule(|r| r.path = Some(path("/a"))), Some("changes nothing")),
        (rule(|r| r.ceiling = Some(CriticalPlus)), Some("claim CRITICAL_PLUS")),
        (
            rule(|r| {
                r.identity = Some(identity("spiffe://partner/**"));
                r.ceiling = Some(CriticalPlus);
            }),
            Some("claim CRITICAL_PLUS"),
        ),
        (
            rule(|r| {
                r.header = Some(gold());
                r.criticality = Some(CriticalPlus);
            }),
            Some("whoever sends a header"),
        ),
        (
            rule(|r| {
                r.header = Some(gold());
                r.path = Some(path("/a"));
                r.criticality = Some(CriticalPlus);
            }),
            None,
        ),
        (rule(|r| r.ceiling = Some(Critical)), None),
    ] {
        let found = rule.fault();
        assert_eq!(found.is_some(), wrong.is_some(), "{rule:?}");
        assert!(
            found.zip(wrong).is_none_or(|((what, _), wrong)| what.contains(wrong)),
            "{found:?}"
        );
    }
}
