//! The proxy that serves, and those before it that still finish what they have.
//!
//! Some of a configuration can be changed in a proxy that runs: whether it refuses, and who may use
//! how much. The rest (where it listens, by how many threads, with which timeouts and
//! certificates) is part of everything in it. So for that a second one is started, in this process
//! and at the same sockets, and the first is replaced as by a successor from outside. What the
//! first has learnt of the program the second learns again. If the second cannot start, there was
//! none.
//!
//! If the end comes while the second starts, it is not needed any more. But it has sockets already,
//! at which connections wait for it, and takes them when it comes up: so it leaves as the first
//! does, and is waited for as well; unless somebody has no patience (ctrl-c), who is not to wait
//! for half a minute of warming up.

use tidegate::Criticality;
use tidegate::life::Phase;
use tidegate_proxy::config::Role;
use tidegate_proxy::{Incumbent, Legacy, Proxy, ProxyError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

/// A proxy that starts.
type Starting = oneshot::Receiver<Result<Proxy, ProxyError>>;

pub(super) struct Reign {
    proxy: Proxy,
    retired: Vec<Proxy>,
    /// One that was to succeed when the end came, and who is heard from then on.
    unwanted: Option<(Starting, Option<Signal>)>,
    incumbent: watch::Sender<Incumbent>,
    /// What those did that are over: handed on, and not finished.
    done: (u64, u64),
}

impl Reign {
    pub(super) fn new(proxy: Proxy) -> Self {
        let incumbent = watch::Sender::new(proxy.incumbent());
        Self { proxy, retired: Vec::new(), unwanted: None, incumbent, done: (0, 0) }
    }

    /// The one that serves.
    pub(super) const fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Whom successors from outside replace.
    pub(super) fn incumbent(&self) -> watch::Receiver<Incumbent> {
        self.incumbent.subscribe()
    }

    /// Changes what can be changed, and returns what cannot.
    pub(super) fn reload(&mut self, role: Role) -> Vec<&'static str> {
        self.proxy.reload(role)
    }

    /// Goes on with another, that does what `role` says. Returns whether it does: if the end comes
    /// first, there is nobody to go on.
    pub(super) async fn succeed(&mut self, role: Role) -> Result<bool, ProxyError> {
        let before = self.proxy.incumbent();
        let legacy = before.legacy()?;
        let mut starting = start(role, legacy)?;
        let proxy = tokio::select! {
            biased;
            _ = self.proxy.life().reached(Phase::LameDuck) => {
                // The ctrl-c that it may have come by is not heard again.
                self.unwanted = Some((starting, signal(SignalKind::interrupt()).ok()));
                return Ok(false);
            }
            // Its sender says something before it goes.
            started = &mut starting => match started {
                Ok(started) => started?,
                Err(_) => return Err(std::io::Error::other("its start panicked").into()),
            },
        };
        // Before it is waited for: a signal that comes now is for both.
        super::end_on_signals(&proxy);
        let phase = proxy.life().reached(Phase::Serving).await;
        // Whoever has told the one before meanwhile to end is heard first.
        tokio::task::yield_now().await;
        if self.proxy.life().is_leaving() {
            // It hears signals already.
            self.leave_with(proxy);
            return Ok(false);
        }
        if phase != Phase::Serving {
            // Not all of its threads could begin, and the one before goes on.
            let why = proxy.join().err();
            let ended = || std::io::Error::other("it ended as soon as it was there").into();
            return Err(why.unwrap_or_else(ended));
        }
        self.incumbent.send_replace(proxy.incumbent());
        before.replaced(proxy.taken());
        self.retired.push(core::mem::replace(&mut self.proxy, proxy));
        Ok(true)
    }

    /// Lets go of what has nothing to do any more.
    pub(super) fn forget_those_that_are_over(&mut self) {
        let over = |proxy: &mut Proxy| proxy.life().phase() == Phase::Gone;
        for proxy in self.retired.extract_if(.., over).collect::<Vec<_>>() {
            // What went wrong at its end is nothing to end the others for.
            let _ = end(proxy, &mut self.done);
        }
    }

    /// Returns when all have finished.
    pub(super) async fn over(&mut self) {
        if let Some((starting, mut impatience)) = self.unwanted.take() {
            tokio::select! {
                started = starting => if let Ok(Ok(proxy)) = started {
                    // One that is told to end before it serves never does. Its delay begins only
                    // now, as connections may have waited for it to come up.
                    proxy.life().reached(Phase::Serving).await;
                    self.leave_with(proxy);
                    // A second ctrl-c is for it as well.
                    if let Some(proxy) = self.retired.last() {
                        super::end_on_signals(proxy);
                    }
                },
                () = super::next(&mut impatience) => {}
            }
        }
        for proxy in self.retired.iter().chain([&self.proxy]) {
            proxy.life().reached(Phase::Gone).await;
        }
    }

    /// Has one that came up when the end had come end as the one that serves does: unless that one
    /// was replaced, nobody serves here after it.
    fn leave_with(&mut self, proxy: Proxy) {
        if self.proxy.life().is_replaced() {
            proxy.life().replaced();
        } else {
            proxy.life().stop();
        }
        self.retired.push(proxy);
    }

    /// Waits for all of them. Returns how many requests were handed on, and were not finished.
    pub(super) fn join(mut self) -> Result<(u64, u64), ProxyError> {
        let mut outcome = Ok(());
        for proxy in self.retired.into_iter().chain([self.proxy]) {
            outcome = outcome.and(end(proxy, &mut self.done));
        }
        outcome.map(|()| self.done)
    }
}

/// Starts a successor on a thread of its own: to warm up may take half a minute, in which signals
/// are to be heard. One that nobody waits for any more ends as soon as it is there.
fn start(role: Role, legacy: Legacy) -> Result<Starting, ProxyError> {
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tidegate-start".to_owned());
    thread.spawn(move || {
        if let Err(Ok(unwanted)) = tell.send(Proxy::succeed(role, legacy)) {
            unwanted.life().replaced();
            // What it says at its end is of no interest.
            let _ = unwanted.join();
        }
    })?;
    Ok(told)
}

fn end(proxy: Proxy, done: &mut (u64, u64)) -> Result<(), ProxyError> {
    let task = proxy.task().clone();
    let ended = proxy.join();
    let requests = task.snapshot().requests;
    done.0 += Criticality::ALL.into_iter().map(|c| requests.admitted(c)).sum::<u64>();
    done.1 += requests.inflight();
    ended
}
