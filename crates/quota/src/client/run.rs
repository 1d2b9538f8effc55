//! The thread that holds the stream.
//!
//! One stream at a time, to one address after the other. Whatever happens to it, the task's limits
//! are looked at once an interval, so that they fade when they should. Between two attempts there
//! is a pause that doubles, half of it by chance: a fleet that lost its server must not come back
//! as one. Whoever is told where the leader is has waited for that, and goes there after the
//! shortest; unless that one knows of another leader, as two servers could send it to and fro.

use super::member::{Member, Next, REPORT_EVERY};
use super::state::{Shared, Trouble};
use super::zone::Zone;
use crate::link::{CONNECT_WITHIN, Route};
use crate::server::book::Provided;
use crate::server::owner::Owner;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{ServerMessage, TaskMessage};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

/// The first pause: short enough for a server that was restarted, long enough not to spin.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest. With ten thousand tasks that is two thousand attempts a second.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Connections that lead nowhere are noticed after about two of these.
const PING_EVERY: Duration = Duration::from_secs(5);
/// All customers of a service in one message: 65,536 of them with the longest names have 11 MB.
const MESSAGE_MAX: usize = 64 << 20;
/// Reports that wait for the network. When there are more the stream leads nowhere.
const BACKLOG: usize = 8;
/// How often in an interval of reports a zone looks whether its tasks have taken a cut in: as often
/// as its book has rounds. A server takes sixteen messages in an interval, and ends streams that
/// acknowledge nothing for some of them.
const SETTLES: u32 = 4;
/// How long a task that ends waits for its last words to be heard.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a zone's server ends its stream by itself.
const OVER: &str = "this server does not lead its zone any more";

/// What the thread works with.
pub(super) struct Line {
    pub(super) member: Member,
    pub(super) route: Route,
    pub(super) shared: Arc<Shared>,
    pub(super) dice: SeededRng,
    /// Where its limits go, if it stands for a zone.
    pub(super) post: Option<Post>,
}

/// A zone, and who owns its book.
pub(crate) struct Post {
    pub(crate) zone: Zone,
    pub(crate) owner: Owner,
    /// What the book was told.
    pub(crate) told: Option<Provided>,
    pub(crate) flags: Arc<Flags>,
}

/// What a zone and its server let each other know.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// The server above has told what the zone may use.
    pub(crate) heard: AtomicBool,
    /// Nobody in the zone uses anything of it any more.
    pub(crate) leaves: AtomicBool,
}

/// Why a stream ended.
enum Ended {
    /// The task ends.
    Stopped,
    /// Another one is to be opened: there, or wherever somebody leads.
    Moved {
        there: bool,
    },
    Failed(String),
}

/// How long to wait between two attempts.
#[derive(Debug)]
struct Pauses {
    next: Duration,
    /// The last attempt led to where it was sent.
    sent: bool,
}

impl Pauses {
    const fn new() -> Self {
        Self { next: PAUSE_MIN, sent: false }
    }

    /// The pause after a stream that was sent elsewhere, to somebody it was told of, or not.
    fn after(&mut self, there: bool, dice: &mut impl Rng) -> Duration {
        let at_once = there && !self.sent;
        self.sent = there;
        let pause = if at_once { PAUSE_MIN } else { self.next };
        if !at_once {
            self.next = (self.next * 2).min(PAUSE_MAX);
        }
        let half = pause / 2;
        half + Duration::from_secs_f64(half.as_secs_f64() * dice.unit())
    }
}

/// Lets a thread begin that waits; if it is dropped instead, the thread ends.
#[derive(Debug)]
pub(super) struct Start(oneshot::Sender<()>);

impl Start {
    pub(super) fn now(self) {
        // It waits for nothing else.
        let _ = self.0.send(());
    }
}

/// Starts the thread, which waits until it is told to begin.
pub(super) fn start(
    line: Line,
    stopped: watch::Receiver<bool>,
) -> io::Result<(Start, JoinHandle<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("tidegate-quota".to_owned());
    let (start, begun) = oneshot::channel();
    let thread = thread.spawn(move || {
        runtime.block_on(async {
            if begun.await.is_ok() {
                run(line, stopped).await;
            }
        });
    })?;
    Ok((Start(start), thread))
}

async fn run(mut line: Line, stopped: watch::Receiver<bool>) {
    let mut pauses = Pauses::new();
    let mut ticks = ticks(REPORT_EVERY, &mut line.dice);
    loop {
        while !line.may_speak() {
            tokio::select! {
                _ = ticks.tick() => line.idle().await,
                () = stopping(stopped.clone()) => return,
            }
        }
        let endpoint = line.route.next();
        let server = endpoint.uri().to_string();
        let ended = stream(&mut line, endpoint, &server, &mut ticks, &mut pauses, &stopped).await;
        let (there, trouble) = match ended {
            Ended::Stopped => return,
            Ended::Moved { there } => (there, None),
            Ended::Failed(what) => (false, Some(Trouble { server, what })),
        };
        line.shared.change(|state| {
            state.server = None;
            state.trouble = trouble;
        });
        let until = sleep(pauses.after(there, &mut line.dice));
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => break,
                _ = ticks.tick() => line.idle().await,
                () = stopping(stopped.clone()) => return,
            }
        }
    }
}

impl Line {
    /// There is nobody to report to: what is enforced fades.
    async fn idle(&mut self) {
        self.count().await;
        let _ = self.member.tick();
        self.say_standing();
        let _ = self.settle().await;
    }

    /// Whether it may speak: who stands for a zone, only while it leads there.
    fn may_speak(&self) -> bool {
        let now = self.member.now();
        self.post.as_ref().is_none_or(|post| post.owner.fence.is_open(now))
    }

    /// Whether it takes leave when it ends. The tasks of a zone go on with what they have, if there
    /// are any.
    fn leaves(&self) -> bool {
        self.post.as_ref().is_none_or(|post| post.flags.leaves.load(Ordering::Acquire))
    }

    /// Looks what a zone's tasks do.
    async fn count(&mut self) {
        if let Some(post) = &mut self.post
            && let Some(status) = post.owner.status().await
        {
            post.zone.count(&status);
        }
    }

    /// Tells a zone's book what it may hand out. Returns what has arrived there, if that is news.
    async fn settle(&mut self) -> Option<TaskMessage> {
        let post = self.post.as_mut()?;
        if let Some(provided) = post.zone.provided(&self.member)
            && post.told.as_ref() != Some(&provided)
        {
            post.owner.provide(provided.clone()).await;
            post.told = Some(provided);
            post.flags.heard.store(true, Ordering::Release);
        }
        let (status, rounds) = post.owner.stand().await?;
        Zone::settle(&mut self.member, &status, rounds)
    }

    fn say_standing(&self) {
        let standing = self.member.standing();
        let (epoch, learning) = self.member.leader();
        let mut server = None;
        self.shared.change(|state| {
            (state.epoch, state.learning, state.standing) = (epoch, learning, standing);
            server.clone_from(&state.server);
        });
        self.member.show(server.as_deref());
    }
}

/// Returns when the task ends.
async fn stopping(mut stopped: watch::Receiver<bool>) {
    // Whoever held the other end is gone: that is an end, too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// One tick an interval, the first by chance within it, so that tasks which were started together
/// do not report together.
fn ticks(every: Duration, dice: &mut SeededRng) -> Interval {
    let first = Duration::from_secs_f64(every.as_secs_f64() * (0.5 + dice.unit() / 2.0));
    let mut ticks = interval_at(Instant::now() + first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Opens a stream while limits go on fading.
async fn open(
    line: &mut Line,
    endpoint: Endpoint,
    ticks: &mut Interval,
) -> Result<(mpsc::Sender<TaskMessage>, Streaming<ServerMessage>), String> {
    let (say, said) = mpsc::channel(BACKLOG);
    // The channel is new and so has room.
    let _ = say.try_send(line.member.hello());
    let endpoint = endpoint
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .keep_alive_while_idle(true);
    let link = line.route.link.clone();
    let opening = timeout(CONNECT_WITHIN, async {
        let channel = link.connect(&endpoint).await?;
        let mut client = QuotaClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
        let answer = client.report(ReceiverStream::new(said)).await;
        answer.map(tonic::Response::into_inner).map_err(|status| link.told(&endpoint, &status))
    });
    tokio::pin!(opening);
    loop {
        tokio::select! {
            opened = &mut opening => {
                let opened = opened.map_err(|_| "no answer".to_owned())??;
                return Ok((say, opened));
            }
            _ = ticks.tick() => line.idle().await,
        }
    }
}

/// Holds one stream until it ends.
async fn stream(
    line: &mut Line,
    endpoint: Endpoint,
    server: &str,
    ticks: &mut Interval,
    pauses: &mut Pauses,
    stopped: &watch::Receiver<bool>,
) -> Ended {
    let opened = tokio::select! {
        opened = open(line, endpoint.clone(), ticks) => opened,
        () = stopping(stopped.clone()) => return Ended::Stopped,
    };
    let (say, mut heard) = match opened {
        Ok(opened) => opened,
        Err(what) => return Ended::Failed(what),
    };
    let mut settling = settles(ticks.period());
    loop {
        let next = tokio::select! {
            biased;
            () = stopping(stopped.clone()) => {
                if line.leaves() {
                    farewell(say, heard).await;
                }
                return Ended::Stopped;
            }
            message = heard.message() => match message {
                Ok(Some(message)) => message,
                Ok(None) => return Ended::Failed("the server has ended the stream".to_owned()),
                Err(status) => {
                    return Ended::Failed(line.route.link.told(&endpoint, &status));
                }
            },
            _ = ticks.tick() => {
                line.count().await;
                // The clock is read after that has waited.
                if !line.may_speak() {
                    return Ended::Failed(OVER.to_owned());
                }
                let report = line.member.tick();
                line.say_standing();
                if report.is_some_and(|report| say.try_send(report).is_err()) {
                    return Ended::Failed("the server does not read reports".to_owned());
                }
                continue;
            }
            _ = settling.tick(), if line.post.is_some() => {
                let words = line.settle().await;
                if !line.may_speak() {
                    return Ended::Failed(OVER.to_owned());
                }
                if words.is_some_and(|words| say.try_send(words).is_err()) {
                    return Ended::Failed("the server does not read reports".to_owned());
                }
                continue;
            }
        };
        if let Some(every) = Member::report_every(&next) {
            *pauses = Pauses::new();
            *ticks = self::ticks(every, &mut line.dice);
            settling = settles(every);
            line.shared.change(|state| {
                state.streams += 1;
                (state.server, state.trouble) = (Some(server.to_owned()), None);
            });
        }
        let then = line.member.hear(&next);
        line.say_standing();
        match then {
            Ok(Next::Say(None)) => {}
            Ok(Next::Say(Some(words))) => {
                if say.try_send(*words).is_err() {
                    return Ended::Failed("the server does not read reports".to_owned());
                }
            }
            Ok(Next::Resume) => {
                line.route.again(&endpoint);
                return Ended::Moved { there: true };
            }
            Ok(Next::Go(leader)) => {
                line.route.redirect(&endpoint, leader.as_deref());
                return Ended::Moved { there: leader.is_some() };
            }
            Err(nonsense) => return Ended::Failed(nonsense.to_string()),
        }
    }
}

fn settles(every: Duration) -> Interval {
    let mut settles = interval((every / SETTLES).max(Duration::from_millis(1)));
    settles.set_missed_tick_behavior(MissedTickBehavior::Delay);
    settles
}

/// Says goodbye, and waits for a moment until the server has ended the stream.
async fn farewell(say: mpsc::Sender<TaskMessage>, mut heard: Streaming<ServerMessage>) {
    let _ = say.try_send(TaskMessage { leaves: true, ..TaskMessage::default() });
    let _ = timeout(FAREWELL, async { while let Ok(Some(_)) = heard.message().await {} }).await;
}

/// An error with what is behind it.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_where_the_leader_is_goes_there_at_once_but_not_to_and_fro() {
        let mut dice = SeededRng::new(1);
        let mut pauses = Pauses::new();
        // Nobody leads for a while.
        let waits: Vec<Duration> = (0..8).map(|_| pauses.after(false, &mut dice)).collect();
        assert!(waits[0] <= PAUSE_MIN && waits[7] >= PAUSE_MAX / 2, "{waits:?}");
        assert!(pauses.after(true, &mut dice) <= PAUSE_MIN);
        // It sends on to another, who sends back: that is no better than nobody.
        for _ in 0..3 {
            assert!(pauses.after(true, &mut dice) >= PAUSE_MAX / 2);
        }
        // It could not be reached, and the next knows the same: one such attempt a pause.
        assert!(pauses.after(false, &mut dice) >= PAUSE_MAX / 2);
        assert!(pauses.after(true, &mut dice) <= PAUSE_MIN);
        assert!(pauses.after(false, &mut dice) >= PAUSE_MAX / 2);
    }
}
