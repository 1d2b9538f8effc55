//! Peers that mean no good, or are too many.

use crate::common::Server;
use crate::drain::slow;
use core::time::Duration;
use tidegate::serve::Limits;

fn hasty() -> Limits {
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_millis(50);
    limits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_finish_its_headers_is_cut_off() {
    let server = Server::with(slow().0, |serve| serve.limits(hasty())).await;
    for beginning in [
        // Nothing at all, before it is known which protocol it is.
        "",
        // The beginning of HTTP/2, which may yet become HTTP/1.
        "P",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n",
        // A head without an end.
        "GET / HTTP/1.1\r\nhost: a\r\n",
        // A connection that was good before.
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /",
    ] {
        let mut client = server.connect().await;
        client.send(beginning).await;
        client.closed().await;
    }
}
