use super::*;
use http_body_util::{BodyExt as _, Full};

fn request(fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().uri("/a").header("host", "X");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

/// Lets an answer pass, to its end.
async fn pass(stale: &Arc<Stale>, control: &str, body: &'static str) {
    let question = stale.question(&request(&[])).unwrap();
    let answer = Response::builder().header("cache-control", control).body(Full::from(body));
    let passed = question.settle(answer.unwrap(), Full::from);
    assert_eq!(passed.into_body().collect().await.unwrap().to_bytes(), body);
}

#[tokio::test]
async fn while_one_asks_anew_the_others_are_spared() {
    let stale = Stale::new(StaleConfig::default());
    let question = stale.question(&request(&[])).unwrap();
    assert!(question.spared().is_none(), "there is no copy");
    pass(&stale, "max-age=0, stale-while-revalidate=60", "one").await;
    let (copy, anew) = question.spared().unwrap();
    assert_eq!(
        (copy.body(), &copy.headers()["x-tidegate-degraded"]),
        (&Bytes::from("one"), &HeaderValue::from_static("overloaded"))
    );
    let (copy, second) = question.spared().unwrap();
    assert!(anew.is_some() && second.is_none());
    assert_eq!(copy.body(), "one");
    pass(&stale, "max-age=60", "two").await;
    drop(anew);
    // It is fresh: nobody has to ask.
    let (copy, anew) = question.spared().unwrap();
    assert!(anew.is_none());
    assert_eq!(copy.body(), "two");
    // One that is only for errors is not for those who could be served.
    pass(&stale, "max-age=0, stale-if-error=60", "three").await;
    assert!(question.spared().is_none());
}

#[tokio::test]
async fn what_a_question_names_is_one_target_however_it_is_written() {
    let of = |uri: &str, host: Option<&str>| {
        let mut headers = HeaderMap::new();
        headers.extend(host.map(|host| (HOST, HeaderValue::from_str(host).unwrap())));
        target(&uri.parse().unwrap(), &headers)
    };
    let same = Some("shop:80\n/a?b".to_owned());
    assert_eq!(of("/a?b", Some("Shop:80")), same);
    assert_eq!(of("http://shop:80/a?b", None), same);
    assert_eq!(of("/a?b", None), None, "nobody knows whose it is");
    assert_eq!(of("http://me@shop:80/a?b", None), same);
    assert_ne!(of("/a?c", Some("shop:80")), same);
    // A host cannot be taken for a part of a path.
    assert_eq!(of("/app.js", Some("shop/static")), None);
    assert_ne!(of("/b", Some("shop")), of("/a/b", Some("shop")));
}

/// A PUT is answered while a GET that was sent before is still on its way: what that brings may be
/// what was there before.
#[tokio::test]
async fn an_answer_that_was_asked_for_before_a_change_is_not_kept() {
    let stale = Stale::new(StaleConfig::default());
    let slow = stale.question(&request(&[])).unwrap();
    let mut put = request(&[]);
    *put.method_mut() = Method::PUT;
    let changed = stale.question(&put).unwrap();
    drop(changed.settle(Response::new(Full::<Bytes>::default()), Full::from));
    let old = Response::builder().header("cache-control", "max-age=60").body(Full::from("old"));
    let passed = slow.clone().settle(old.unwrap(), Full::from);
    assert_eq!(passed.into_body().collect().await.unwrap().to_bytes(), "old");
    assert!(slow.spared().is_none(), "it was not kept");
    pass(&stale, "max-age=60", "new").await;
    assert_eq!(slow.spared().unwrap().0.body(), "new");
}

/// Readers that stop in the middle of their answers hold what was copied of them.
#[tokio::test]
async fn copies_that_are_being_made_take_no_more_than_their_part() {
    let config = StaleConfig { memory: 1 << 20, ..StaleConfig::default() };
    let stale = Stale::new(config);
    let chunk = Bytes::from(vec![b'x'; 64 << 10]);
    let mut held = Vec::new();
    for n in 0..100 {
        let mut asked = request(&[]);
        *asked.uri_mut() = format!("/{n}").parse().unwrap();
        let frame = || Ok::<_, core::convert::Infallible>(Frame::data(chunk.clone()));
        let two = futures_util::stream::iter([frame(), frame()]);
        let body = http_body_util::StreamBody::new(two);
        let answer = Response::builder().header("cache-control", "max-age=60").body(body);
        let question = stale.question(&asked).unwrap();
        let mut body = question.settle(answer.unwrap(), |_| unreachable!()).into_body();
        body.frame().await.unwrap().unwrap();
        held.push(body);
        let recorded = |body: &Recorded<_>| {
            body.recording.as_ref().map_or(0, |recording| recording.bytes.capacity())
        };
        let bytes: usize = held.iter().map(recorded).sum();
        assert!(bytes <= config.memory / 4, "{bytes} after {n}");
        assert_eq!(stale.making.load(Relaxed), bytes);
    }
    assert!(held.iter().any(|body| body.recording.is_some()));
    drop(held);
    assert_eq!(stale.making.load(Relaxed), 0);
}
