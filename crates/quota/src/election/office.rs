//! What an election asks of etcd, key by key.
//!
//! | key | has | goes |
//! |---|---|---|
//! | `PREFIX/leader` | the address of the leader | with the leader's lease |
//! | `PREFIX/base` | when the first leader was elected, in milliseconds since 1970 | never |
//! | `PREFIX/led` | services that were ever led, a line each | never |
//! | `PREFIX/config` | limits, if servers take them from here | never |
//!
//! Only a leader writes `base` and `led`, in transactions which etcd refuses when the key of the
//! leader is no longer the one it was elected by.

use super::ElectionError;
use crate::etcd::{Etcd, EtcdError};
use core::time::Duration;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_core::election::{Holder, LeaseId};
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::mvccpb::KeyValue;
use wire::compare::{CompareResult, CompareTarget, TargetUnion};
use wire::request_op::Request;
use wire::response_op::Response;

/// Where everything is under a prefix.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) prefix: String,
    leader: String,
    base: String,
    led: String,
    pub(super) config: String,
}

impl Keys {
    pub(super) fn under(prefix: &str) -> Self {
        let key = |name| format!("{prefix}/{name}");
        let prefix = format!("{prefix}/");
        let (leader, base, led, config) = (key("leader"), key("base"), key("led"), key("config"));
        Self { prefix, leader, base, led, config }
    }
}

/// Who has the key.
pub(super) async fn look(
    etcd: &Etcd,
    keys: &Keys,
    within: Duration,
) -> Result<Option<Holder>, EtcdError> {
    Ok(etcd.get(&keys.leader, within).await?.as_ref().map(holder))
}

/// Creates the key if nobody has it. Returns who has it then.
pub(super) async fn claim(
    etcd: &Etcd,
    keys: &Keys,
    name: &str,
    lease: LeaseId,
    within: Duration,
) -> Result<Option<Holder>, EtcdError> {
    let put = wire::PutRequest { key: keys.leader.as_str().into(), value: name.into(), lease };
    let txn = wire::TxnRequest {
        compare: vec![created(&keys.leader, 0)],
        success: vec![op(Request::RequestPut(put))],
        failure: vec![op(get(&keys.leader))],
    };
    let answer = etcd.txn(txn, within).await?;
    if answer.succeeded {
        let revision = answer.header.map_or(0, |header| header.revision);
        let revision = u64::try_from(revision).unwrap_or(0);
        return Ok(Some(Holder { name: name.to_owned(), revision, lease }));
    }
    Ok(found(&answer, 0).map(holder))
}

fn holder(found: &KeyValue) -> Holder {
    Holder {
        name: String::from_utf8_lossy(&found.value).into_owned(),
        revision: u64::try_from(found.create_revision).unwrap_or(0),
        lease: found.lease,
    }
}

/// That of a leader, for as long as its key is there.
#[derive(Debug, Clone)]
pub(super) struct Office {
    etcd: Etcd,
    keys: Keys,
    revision: u64,
    within: Duration,
}

impl Office {
    pub(super) fn new(etcd: &Etcd, keys: &Keys, revision: u64, within: Duration) -> Self {
        Self { etcd: etcd.clone(), keys: keys.clone(), revision, within }
    }

    /// Its epoch, and which services were led before.
    pub(super) async fn enter(&self) -> Result<(u64, BTreeSet<String>), ElectionError> {
        let read = vec![op(get(&self.keys.base)), op(get(&self.keys.led))];
        let answer = self.act(read).await?;
        let text = |n| found(&answer, n).map(|found| String::from_utf8_lossy(&found.value));
        let led = text(1).map(|text| text.lines().map(str::to_owned).collect());
        let base = text(0).and_then(|text| text.parse::<u64>().ok());
        let base = match base {
            Some(base) => base,
            None => self.begin().await?,
        };
        Ok((base.saturating_add(self.revision), led.unwrap_or_default()))
    }

    /// The first leader of all, or the first that can read what it says.
    async fn begin(&self) -> Result<u64, ElectionError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base = u64::try_from(since.as_millis()).unwrap_or(0);
        self.act(vec![op(put(&self.keys.base, &base.to_string()))]).await?;
        Ok(base)
    }

    /// From now on these were led.
    pub(super) async fn remember(&self, led: &BTreeSet<String>) -> Result<(), ElectionError> {
        let lines: Vec<&str> = led.iter().map(String::as_str).collect();
        self.act(vec![op(put(&self.keys.led, &lines.join("\n")))]).await.map(|_| ())
    }

    /// Does this if the key of the leader still is the one it was elected by.
    async fn act(&self, success: Vec<wire::RequestOp>) -> Result<wire::TxnResponse, ElectionError> {
        let compare = vec![created(&self.keys.leader, self.revision)];
        let txn = wire::TxnRequest { compare, success, failure: Vec::new() };
        let answer = self.etcd.txn(txn, self.within).await?;
        if answer.succeeded { Ok(answer) } else { Err(ElectionError::Over) }
    }
}

/// Whether a key came to be at this revision; 0 is that there is none.
fn created(key: &str, revision: u64) -> wire::Compare {
    let revision = i64::try_from(revision).unwrap_or(i64::MAX);
    wire::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: key.into(),
        range_end: Vec::new(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

fn get(key: &str) -> Request {
    Request::RequestRange(wire::RangeRequest { key: key.into(), ..Default::default() })
}

fn put(key: &str, value: &str) -> Request {
    Request::RequestPut(wire::PutRequest { key: key.into(), value: value.into(), lease: 0 })
}

fn op(request: Request) -> wire::RequestOp {
    wire::RequestOp { request: Some(request) }
}

/// The key that the answer to the `n`th question has.
fn found(answer: &wire::TxnResponse, n: usize) -> Option<&KeyValue> {
    match answer.responses.get(n)?.response.as_ref()? {
        Response::ResponseRange(range) => range.kvs.first(),
        _ => None,
    }
}
