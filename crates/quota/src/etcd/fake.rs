//! An etcd of one member, for tests: keys, leases and watches, by whatever time the runtime has.

use core::time::Duration;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::etcdserverpb::kv_server::{Kv, KvServer};
use tidegate_wire::proto::etcdserverpb::lease_server::{Lease, LeaseServer};
use tidegate_wire::proto::etcdserverpb::watch_server::{Watch, WatchServer};
use tidegate_wire::proto::mvccpb::KeyValue;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use wire::compare::TargetUnion;
use wire::{request_op, response_op};

/// How often the real one looks for leases that have ended.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

type Stream<T> = Pin<Box<dyn futures_util::Stream<Item = Result<T, Status>> + Send>>;

/// An etcd that forgets everything when it is dropped.
#[derive(Clone)]
pub(crate) struct Fake {
    store: Arc<Mutex<Store>>,
    /// Keys that have changed.
    changes: broadcast::Sender<Vec<u8>>,
}

#[derive(Default)]
struct Store {
    revision: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// Seconds, and when it ends.
    leases: BTreeMap<i64, (i64, Instant)>,
    last_lease: i64,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let store = Arc::new(Mutex::new(Store { revision: 1, ..Store::default() }));
        Self { store, changes: broadcast::channel(64).0 }
    }

    pub(crate) fn routes(&self) -> Routes {
        Routes::new(KvServer::new(self.clone()))
            .add_service(LeaseServer::new(self.clone()))
            .add_service(WatchServer::new(self.clone()))
    }

    /// Ends leases whose time is up, for ever.
    pub(crate) async fn expire(self) {
        loop {
            tokio::time::sleep(EXPIRE_EVERY).await;
            let now = Instant::now();
            let over = |(id, (_, end)): (&i64, &(i64, Instant))| (now >= *end).then_some(*id);
            let over: Vec<i64> = self.store().leases.iter().filter_map(over).collect();
            for lease in over {
                self.end(lease);
            }
        }
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let store = self.store();
        let found = store.keys.get(key.as_bytes())?;
        Some(String::from_utf8(found.value.clone()).unwrap())
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, lease: i64) -> bool {
        let mut store = self.store();
        let known = store.leases.remove(&lease).is_some();
        let keys = store.keys.values().filter(|key| key.lease == lease && lease != 0);
        let keys: Vec<Vec<u8>> = keys.map(|key| key.key.clone()).collect();
        if !keys.is_empty() {
            store.revision += 1;
        }
        for key in keys {
            store.keys.remove(&key);
            let _ = self.changes.send(key);
        }
        known
    }
}

impl Store {
    fn header(&self) -> wire::ResponseHeader {
        wire::ResponseHeader { revision: self.revision, ..wire::ResponseHeader::default() }
    }

    fn range(&self, request: &wire::RangeRequest) -> wire::RangeResponse {
        let kvs: Vec<KeyValue> = self.keys.get(&request.key).cloned().into_iter().collect();
        let count = kvs.len() as i64;
        wire::RangeResponse { header: Some(self.header()), kvs, more: false, count }
    }

    fn put(&mut self, request: wire::PutRequest, revision: i64) -> Result<(), Status> {
        if request.lease != 0 && !self.leases.contains_key(&request.lease) {
            return Err(Status::not_found("etcdserver: requested lease not found"));
        }
        let wire::PutRequest { key, value, lease } = request;
        let before = self.keys.get(&key);
        let create_revision = before.map_or(revision, |before| before.create_revision);
        let version = before.map_or(1, |before| before.version + 1);
        let kept = KeyValue {
            key: key.clone(),
            create_revision,
            mod_revision: revision,
            version,
            value,
            lease,
        };
        (self.revision, _) = (revision, self.keys.insert(key, kept));
        Ok(())
    }

    fn holds(&self, compare: &wire::Compare) -> bool {
        let found = self.keys.get(&compare.key).map_or(0, |found| found.create_revision);
        // Nothing else is compared here.
        compare.target_union == Some(TargetUnion::CreateRevision(found))
    }
}

#[tonic::async_trait]
impl Kv for Fake {
    async fn range(
        &self,
        request: Request<wire::RangeRequest>,
    ) -> Result<Response<wire::RangeResponse>, Status> {
        Ok(Response::new(self.store().range(request.get_ref())))
    }

    async fn put(
        &self,
        request: Request<wire::PutRequest>,
    ) -> Result<Response<wire::PutResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.store();
        let (key, revision) = (request.key.clone(), store.revision + 1);
        store.put(request, revision)?;
        let _ = self.changes.send(key);
        Ok(Response::new(wire::PutResponse { header: Some(store.header()) }))
    }

    async fn delete_range(
        &self,
        _: Request<wire::DeleteRangeRequest>,
    ) -> Result<Response<wire::DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn txn(
        &self,
        request: Request<wire::TxnRequest>,
    ) -> Result<Response<wire::TxnResponse>, Status> {
        let request = request.into_inner();
        let mut store = self.store();
        let succeeded = request.compare.iter().all(|compare| store.holds(compare));
        let revision = store.revision + 1;
        let mut responses = Vec::new();
        for op in if succeeded { request.success } else { request.failure } {
            let response = match op.request {
                Some(request_op::Request::RequestRange(range)) => {
                    Some(response_op::Response::ResponseRange(store.range(&range)))
                }
                Some(request_op::Request::RequestPut(put)) => {
                    let key = put.key.clone();
                    store.put(put, revision)?;
                    let _ = self.changes.send(key);
                    let header = Some(store.header());
                    Some(response_op::Response::ResponsePut(wire::PutResponse { header }))
                }
                _ => return Err(Status::unimplemented("not here")),
            };
            responses.push(wire::ResponseOp { response });
        }
        Ok(Response::new(wire::TxnResponse { header: Some(store.header()), succeeded, responses }))
    }
}

#[tonic::async_trait]
impl Lease for Fake {
    type LeaseKeepAliveStream = Stream<wire::LeaseKeepAliveResponse>;

    async fn lease_grant(
        &self,
        request: Request<wire::LeaseGrantRequest>,
    ) -> Result<Response<wire::LeaseGrantResponse>, Status> {
        let ttl = request.get_ref().ttl;
        let mut store = self.store();
        store.last_lease += 1;
        let id = store.last_lease;
        let end = Instant::now() + Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        store.leases.insert(id, (ttl, end));
        let (header, error) = (Some(store.header()), String::new());
        Ok(Response::new(wire::LeaseGrantResponse { header, id, ttl, error }))
    }

    async fn lease_revoke(
        &self,
        request: Request<wire::LeaseRevokeRequest>,
    ) -> Result<Response<wire::LeaseRevokeResponse>, Status> {
        if !self.end(request.get_ref().id) {
            return Err(Status::not_found("etcdserver: requested lease not found"));
        }
        Ok(Response::new(wire::LeaseRevokeResponse { header: Some(self.store().header()) }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<wire::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let first = request.into_inner().message().await?;
        let id = first.map_or(0, |first| first.id);
        let mut store = self.store();
        let ttl = store.leases.get_mut(&id).map_or(0, |(ttl, end)| {
            *end = Instant::now() + Duration::from_secs(u64::try_from(*ttl).unwrap_or(0));
            *ttl
        });
        let answer = wire::LeaseKeepAliveResponse { header: Some(store.header()), id, ttl };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(answer)))))
    }
}

#[tonic::async_trait]
impl Watch for Fake {
    type WatchStream = Stream<wire::WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<wire::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut asked = request.into_inner();
        let first = asked.message().await?.and_then(|first| first.request_union);
        let Some(wire::watch_request::RequestUnion::CreateRequest(create)) = first else {
            return Err(Status::unimplemented("not here"));
        };
        let mut changes = self.changes.subscribe();
        let (tell, told) = tokio::sync::mpsc::channel(8);
        tokio::spawn(async move {
            let _asked = asked;
            let created = wire::WatchResponse { created: true, ..wire::WatchResponse::default() };
            let mut next = Some(created);
            loop {
                if let Some(next) = next.take()
                    && tell.send(Ok(next)).await.is_err()
                {
                    return;
                }
                match changes.recv().await {
                    Ok(key) if key >= create.key && key < create.range_end => {
                        next = Some(wire::WatchResponse::default());
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(told))))
    }
}
