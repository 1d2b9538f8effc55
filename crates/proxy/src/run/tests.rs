use super::*;
use crate::pool::Upstream;
use crate::sockets::Group;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

/// What was bound on behalf of this many workers, and can be listened at by all but the last.
const WORKERS: usize = 8;

/// No runtime can wait for a file.
fn broken() -> TcpListener {
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    TcpListener::from(OwnedFd::from(file))
}

/// The last to begin cannot, when all others have had the time to.
#[test]
fn a_successor_serves_only_if_all_of_its_workers_can() {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut sockets: Vec<TcpListener> =
        (1..WORKERS).map(|_| TcpListener::bind(address).unwrap()).collect();
    sockets.push(broken());
    let legacy = Legacy { groups: vec![Group { number: 0, asked: address, sockets }] };
    let mut config = Config::new(address, Upstream::Address(address));
    config.workers = NonZeroUsize::new(WORKERS);
    let proxy = Proxy::succeed(config, legacy).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let phase = runtime.block_on(proxy.life().reached(Phase::Serving));
    // One that has served is a lame duck first.
    assert!(phase >= Phase::Draining, "{phase:?}");
    let error = proxy.join().unwrap_err();
    assert!(matches!(error, ProxyError::Thread(_)), "{error}");
}
