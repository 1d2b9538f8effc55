//! Being woken when a key changes.
//!
//! A watch only says that something has happened. It may miss what happened while there was no
//! connection, so it also wakes when it begins; and as it cannot tell a quiet store from a dead
//! line, whoever is woken looks by itself from time to time.

use super::{Etcd, EtcdError, asking};
use core::time::Duration;
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::etcdserverpb::watch_client::WatchClient;
use tokio::time::{sleep, timeout};
use wire::watch_request::RequestUnion;

impl Etcd {
    /// Calls `wake` whenever a key that begins with `prefix` may have changed, for ever. Begins
    /// anew after `pause` when the line has ended, or when nothing began within that time.
    pub async fn watch(&self, prefix: &str, pause: Duration, mut wake: impl FnMut()) {
        loop {
            // Whatever ended it, calls find out whether another member is better.
            let _ = self.watch_once(prefix, pause, &mut wake).await;
            sleep(pause).await;
        }
    }

    async fn watch_once(
        &self,
        prefix: &str,
        within: Duration,
        wake: &mut impl FnMut(),
    ) -> Result<(), EtcdError> {
        let create = wire::WatchCreateRequest {
            key: prefix.into(),
            range_end: after(prefix.as_bytes()),
            ..wire::WatchCreateRequest::default()
        };
        let create =
            wire::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // It ends when the other side has nothing more to say, so this one must not end before.
        let asked = futures_util::stream::once(core::future::ready(create));
        let asked = futures_util::StreamExt::chain(asked, futures_util::stream::pending());
        // Calls have a token by then, or get one.
        let (turn, channel, token) = self.line();
        let silent = |what: String| {
            let endpoint = self.inner.endpoints[turn].uri().to_string();
            EtcdError::Silent { endpoint, what }
        };
        let mut client = WatchClient::new(channel);
        let began = timeout(within, async {
            let mut told = client.watch(asking(asked, token)).await?.into_inner();
            let first = told.message().await?;
            Ok::<_, tonic::Status>((first, told))
        });
        let (mut next, mut told) = match began.await {
            Ok(Ok(began)) => began,
            Ok(Err(status)) => return Err(silent(status.to_string())),
            Err(_) => return Err(silent("the watch never began".to_owned())),
        };
        while let Some(message) = next {
            if message.canceled {
                return Err(silent(message.cancel_reason));
            }
            wake();
            next = told.message().await.map_err(|status| silent(status.to_string()))?;
        }
        Ok(())
    }
}

/// The first key after all that begin with `prefix`; all keys if there is none.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_its_prefix() {
        assert_eq!(after(b"/a/"), b"/a0");
        assert_eq!(after(&[b'a', 0xff]), b"b");
        assert_eq!(after(&[0xff]), [0]);
        assert_eq!(after(b""), [0]);
    }
}
