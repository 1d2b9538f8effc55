//! Measures of the parts that only some worlds have.

// As in `measure`: all measures have one type.
#![allow(clippy::unnecessary_wraps)]

use super::measure::{Sample, over, part};
use crate::world::record::{ConnectionSecond, DoormanSecond};
use core::ops::Range;

fn whole_seconds(s: &Sample<'_>) -> Range<usize> {
    s.span.start.as_secs() as usize..s.span.end.as_secs() as usize
}

/// Requests that no datacenter had room for.
pub(super) fn unplaced(s: &Sample<'_>) -> Option<f64> {
    over(s.sum_clients(|bin| bin.unplaced), s.asked().0)
}

/// Requests that went to the datacenter nearest to who asked, of all that went to any.
pub(super) fn nearest(s: &Sample<'_>) -> Option<f64> {
    let (mut near, mut all) = (0.0, 0.0);
    for &client in s.clients {
        let world = &s.parts.world;
        let spec = &world.clients[client];
        let tasks = &world.services[spec.service].tasks;
        let row = &world.distance[spec.datacenter];
        let nearest = tasks.iter().map(|task| task.datacenter).min_by_key(|&to| (row[to], to))?;
        for (place, seconds) in s.record.sent_to[client].iter().enumerate() {
            let sent = part(seconds, whole_seconds(s)).iter().map(|&n| f64::from(n)).sum::<f64>();
            all += sent;
            near += if place == nearest { sent } else { 0.0 };
        }
    }
    over(near, all)
}

/// From the start of a batch job to its end; nothing if it did not end.
pub(super) fn batch_time(s: &Sample<'_>) -> Option<f64> {
    let one = |&client: &usize| {
        let spec = s.parts.world.clients[client].batch.as_ref()?;
        let finished = s.record.batch_finished[client]?;
        Some(finished.since(spec.start).as_secs_f64())
    };
    let batches = s.clients.iter().filter(|&&c| s.parts.world.clients[c].batch.is_some());
    let times: Option<Vec<f64>> = batches.map(one).collect();
    times?.into_iter().reduce(f64::max)
}

/// Requests of batch jobs that were answered by the end of the span.
pub(super) fn batch_done(s: &Sample<'_>) -> Option<f64> {
    let last = whole_seconds(s).end.checked_sub(1)?;
    let done = s.clients.iter().filter_map(|&client| s.record.batch[client].get(last));
    done.map(|second| f64::from(second.done)).reduce(|a, b| a + b)
}

/// What was leased in each second, over what there was or was wanted.
fn leases(s: &Sample<'_>) -> Vec<f64> {
    let mut servers: Vec<usize> =
        s.clients.iter().filter_map(|&client| s.parts.world.clients[client].doorman).collect();
    servers.sort_unstable();
    servers.dedup();
    let seconds =
        servers.iter().flat_map(|&server| part(&s.record.doormen[server], whole_seconds(s)));
    let share = |second: &DoormanSecond| {
        // Nobody can be given more than it wants.
        let most = f64::from(second.capacity.min(second.wanted));
        over(f64::from(second.leased), most)
    };
    seconds.filter_map(share).collect()
}

/// What was leased, over what there was or was wanted: the mean of all seconds.
pub(super) fn leased(s: &Sample<'_>) -> Option<f64> {
    let seconds = leases(s);
    over(seconds.iter().sum(), seconds.len() as f64)
}

/// The least in any second.
pub(super) fn leased_least(s: &Sample<'_>) -> Option<f64> {
    leases(s).into_iter().reduce(f64::min)
}

/// The most.
pub(super) fn leased_most(s: &Sample<'_>) -> Option<f64> {
    leases(s).into_iter().reduce(f64::max)
}

/// The most of a customer's limit that tasks enforced together in any second.
pub(super) fn quota_enforced(s: &Sample<'_>) -> Option<f64> {
    let seconds = part(s.record.quota.get(s.customer?)?, whole_seconds(s));
    let share = |second: &crate::world::record::QuotaSecond| {
        over(f64::from(second.enforced), f64::from(second.limit))
    };
    seconds.iter().filter_map(share).reduce(f64::max)
}

fn connection_seconds<'a>(s: &'a Sample<'_>) -> impl Iterator<Item = &'a ConnectionSecond> {
    let all = s.services.iter().map(|&service| &s.record.connections[service]);
    all.flat_map(|seconds| part(seconds, whole_seconds(s)))
}

/// The most connections that were open at the end of a second.
pub(super) fn connections(s: &Sample<'_>) -> Option<f64> {
    connection_seconds(s).map(|second| f64::from(second.open)).reduce(f64::max)
}

/// The connections that each task has at the end of the span, over their mean.
fn connected(s: &Sample<'_>) -> Option<Vec<f64>> {
    let last = whole_seconds(s).end.checked_sub(1)?;
    let mut all = Vec::new();
    for &service in s.services {
        let open = s.record.connected[service].get(last)?;
        let tasks = s.tasks.clone().unwrap_or(0..open.len());
        all.extend(part(open, tasks).iter().map(|&open| f64::from(open)));
    }
    let mean = over(all.iter().sum(), all.len() as f64)?;
    all.into_iter().map(|open| over(open, mean)).collect()
}

pub(super) fn connections_least(s: &Sample<'_>) -> Option<f64> {
    connected(s)?.into_iter().reduce(f64::min)
}

pub(super) fn connections_most(s: &Sample<'_>) -> Option<f64> {
    connected(s)?.into_iter().reduce(f64::max)
}

pub(super) fn connects(s: &Sample<'_>) -> Option<f64> {
    Some(connection_seconds(s).map(|second| f64::from(second.connects)).sum())
}

pub(super) fn health_checks(s: &Sample<'_>) -> Option<f64> {
    Some(connection_seconds(s).map(|second| f64::from(second.health_checks)).sum())
}

/// CPU time of handshakes and health checks, as a share of one CPU of the reference machine.
pub(super) fn connection_cpu(s: &Sample<'_>) -> Option<f64> {
    let cpu: f64 = connection_seconds(s).map(|second| f64::from(second.cpu)).sum();
    over(cpu, s.seconds())
}
