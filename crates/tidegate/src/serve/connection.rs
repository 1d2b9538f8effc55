//! One connection, from the handshake to its end.

use super::activity::Activity;
use super::front::Front;
use super::protocol::Protocol;
use super::rest::Rest;
use super::seldom::Seldom;
use super::{BoxError, Common, Limits, Peer, RequestBody};
use crate::executor::Executor;
use crate::life::{Life, Phase};
use core::time::Duration;
use http::{Request, Response};
use http_body::Body;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_core::connection::idle::{IdlePolicy, IdleVerdict};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::units::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

/// What all requests of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) life: Life,
    pub(super) peer: Peer,
    /// Whether requests are told of their peer.
    pub(super) introduces: bool,
    pub(super) limits: Limits,
    pub(super) executor: Executor,
    pub(super) activity: Activity,
    /// Whether there is, or may be, a body that nobody will read to its end.
    pub(super) given_up: AtomicBool,
    /// Whether all was said on it, and it waits for its peer to close.
    pub(super) lingers: AtomicBool,
    /// When headers were first seen to come that have not come in full. Looked at now and then.
    begun: Mutex<Option<Timestamp>>,
    /// Whether it began with HTTP/2's greeting.
    pub(super) http2: AtomicBool,
    /// Whether it is more than a transport.
    pub(super) rest: Rest,
}

impl Shared {
    fn is_http2(&self) -> bool {
        self.http2.load(Relaxed)
    }

    /// When the headers that are on their way have begun to come, as seen at looks of which this is
    /// one; `anew` if there were others before, since the last.
    fn begun_at(&self, anew: bool, now: Timestamp) -> Option<Timestamp> {
        let begun = self.activity.has_begun() && !self.is_http2();
        let mut at = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *at = begun.then(|| at.filter(|_| !anew).unwrap_or(now));
        *at
    }
}

/// A place in the gate.
#[derive(Debug)]
pub(super) struct Place(Arc<ConnectionGate>);

impl Place {
    /// After the gate has taken it.
    pub(super) const fn new(gate: Arc<ConnectionGate>) -> Self {
        Self(gate)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By itself, or because it was asked to.
    Closed,
    /// By the limit of draining.
    Cut,
    /// No request came on it for too long, and HTTP/1 has no way to say so.
    Starved,
}

/// Serves `io`, as HTTP/1 or HTTP/2, until it ends or has to.
pub(super) async fn run<I, M, S, B>(
    common: Arc<Common>,
    io: I,
    peer: Peer,
    mut make: M,
    dice: SeededRng,
) where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    M: Service<Peer, Response = S>,
    M::Error: Into<BoxError>,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Asked before anything else, as the answer may change while it is made.
    let came_in_time = common.life.phase() < Phase::LameDuck;
    let made = async {
        core::future::poll_fn(|context| make.poll_ready(context)).await?;
        make.call(peer.clone()).await
    };
    let made = tokio::select! {
        made = made => made.ok(),
        _ = common.life.reached(Phase::Gone) => None,
    };
    let Some(service) = made else {
        common.counters.unserved.fetch_add(1, Relaxed);
        return;
    };
    let limits = common.limits;
    let shared = Arc::new(Shared {
        life: common.life.clone(),
        peer,
        introduces: common.introduces,
        limits,
        executor: common.executor.clone(),
        activity: Activity::default(),
        given_up: AtomicBool::new(false),
        lingers: AtomicBool::new(false),
        begun: Mutex::default(),
        http2: AtomicBool::new(false),
        rest: Rest::default(),
    });
    let service = Front::new(service, Arc::clone(&shared));
    let mut connection = Protocol::new(&common, io, service, &shared);
    let leave = Seldom::new(time_to_leave(&common, &shared, came_in_time, dice));
    let asked = tokio::select! {
        biased;
        () = &mut connection => return,
        end = leave => end,
    };
    let end = match asked {
        // Nobody is there to be asked.
        End::Starved => return,
        End::Cut => End::Cut,
        End::Closed => {
            connection.graceful_shutdown();
            // A task that leaves has a limit for all that is on its way; one that stays has none,
            // and does not wait for peers that take nothing.
            let activity = &shared.activity;
            let is_used =
                || activity.is_used() || (common.life.is_leaving() && activity.is_owing());
            let timeout = || Some(limits.header_timeout);
            tokio::select! {
                () = connection => End::Closed,
                _ = common.life.reached(Phase::Gone) => End::Cut,
                () = unused(&common, &shared, is_used, timeout) => End::Cut,
            }
        }
    };
    // Of one that only waited for its peer to close nothing is lost.
    if end == End::Cut && !shared.lingers.load(Relaxed) {
        common.counters.cut.fetch_add(1, Relaxed);
    }
}

/// Returns when the connection should be asked to end.
async fn time_to_leave(
    common: &Common,
    shared: &Shared,
    came_in_time: bool,
    mut dice: SeededRng,
) -> End {
    let limits = &common.limits;
    let age = limits.age_max.map(|age| jittered(age, limits, &mut dice));
    let old = async {
        match age {
            Some(age) => tokio::time::sleep(age).await,
            None => core::future::pending().await,
        }
    };
    let activity = &shared.activity;
    let drop_after = || {
        let (idle_max, headers) = (limits.idle_max, limits.header_timeout);
        match () {
            () if shared.is_http2() => idle_max,
            () if activity.has_begun() => Some(headers),
            // A stranger who has yet to say something has no longer than for saying it.
            () if !activity.was_asked() => Some(idle_max.map_or(headers, |max| max.min(headers))),
            () => idle_max,
        }
    };
    let idle = unused(common, shared, || activity.is_used(), drop_after);
    tokio::select! {
        phase = leaving(common, &shared.http2, came_in_time, dice) => match phase {
            Phase::Gone => End::Cut,
            _ => End::Closed,
        },
        () = old => End::Closed,
        () = idle => if shared.is_http2() { End::Closed } else { End::Starved },
    }
}

/// Returns when the task is leaving; if it was when the connection came, when it drains.
///
/// HTTP/2 can be told to leave without harm to what is on its way, HTTP/1 cannot: a connection
/// that is closed while it is idle may have a request in it that nobody has read. Its next answer
/// tells it, and if there is none it is idle for all of the drain delay before it is closed.
async fn leaving(
    common: &Common,
    http2: &AtomicBool,
    came_in_time: bool,
    mut dice: SeededRng,
) -> Phase {
    // Who comes to a lame duck has not heard of it yet and would only come back.
    if came_in_time {
        let phase = common.life.reached(Phase::LameDuck).await;
        if phase == Phase::LameDuck && http2.load(Relaxed) {
            let spread = u64::try_from(common.goodbye_spread.as_nanos()).unwrap_or(u64::MAX);
            let wait = Duration::from_nanos(dice.below(spread.saturating_add(1)));
            let _ = tokio::time::timeout(wait, common.life.draining()).await;
            return common.life.phase();
        }
    }
    common.life.reached(Phase::Draining).await
}

/// Returns when the connection was not used for `drop_after`, asked anew at each look; never if
/// that is nothing. Up to a quarter longer, as it looks only so often. It also sees to it that one
/// that was not used from one look to the next rests.
///
/// It counts from when it was used last or, if the headers of a request of HTTP/1 have begun to
/// come, from when that was seen: within a quarter of that time, or a second if it rests by then. A
/// connection is used from when headers have come to when their answer was written. A timer of
/// hyper's would be set and cleared with each request.
async fn unused(
    common: &Common,
    shared: &Shared,
    is_used: impl Fn() -> bool,
    drop_after: impl Fn() -> Option<Duration>,
) {
    let mut policy = IdlePolicy::default();
    let mut last_used = common.clock.now();
    // Whether it was looked at since it rested.
    let mut seen = false;
    loop {
        let limit = drop_after();
        if limit.is_none() && shared.is_http2() {
            return core::future::pending().await;
        }
        // Of HTTP/1 one looks all the same: headers may begin to come, and it may rest.
        policy.drop_after = limit.unwrap_or(Duration::MAX);
        let drop_after = limit.unwrap_or(common.limits.header_timeout);
        let now = common.clock.now();
        let used = is_used();
        if used {
            last_used = now;
        }
        // The first request has its time from when the connection came.
        let begun = shared.begun_at(used, now).filter(|_| shared.activity.was_asked());
        let since = begun.unwrap_or(last_used);
        let until = match policy.verdict(since, now) {
            IdleVerdict::Drop => return,
            IdleVerdict::KeepUntil(until) => until,
        };
        // Never at once: a clock may be coarser than a timer.
        let mut wait = until.since(now).max(Duration::from_millis(1));
        if shared.rest.is_on() {
            seen = false;
            // Nobody uses it without ending that first.
            let _ = tokio::time::timeout(wait, shared.rest.ended()).await;
            continue;
        }
        wait = wait.min(drop_after / 4).max(Duration::from_millis(1));
        if let (Some(rest_after), false) = (common.limits.rest_after, shared.is_http2()) {
            if seen && !used && !shared.given_up.load(Relaxed) {
                shared.rest.ask().await;
            }
            wait = wait.min(rest_after);
        }
        seen = true;
        tokio::time::sleep(wait).await;
    }
}

/// `age`, give or take a share.
fn jittered(age: Duration, limits: &Limits, dice: &mut SeededRng) -> Duration {
    let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    let swing = limits.age_jitter.share_of(nanos);
    let drawn = dice.below(swing.saturating_mul(2).saturating_add(1));
    Duration::from_nanos((nanos - swing.min(nanos)).saturating_add(drawn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Ratio;

    #[test]
    fn ages_differ_by_the_jitter_and_no_more() {
        let hour = Duration::from_secs(3_600);
        let mut dice = SeededRng::new(7);
        let limits = Limits { age_jitter: Ratio::percent(10), ..Limits::default() };
        let ages: Vec<_> = (0..1_000).map(|_| jittered(hour, &limits, &mut dice)).collect();
        let (least, most) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!(*least >= Duration::from_secs(3_240), "{least:?}");
        assert!(*most <= Duration::from_secs(3_960), "{most:?}");
        assert!(*most > *least + Duration::from_secs(600), "{least:?} to {most:?}");
        let none = Limits { age_jitter: Ratio::ZERO, ..limits };
        assert_eq!(jittered(hour, &none, &mut dice), hour);
    }
}
