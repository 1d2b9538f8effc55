//! The proxy that serves, and those before it that still finish what they have.
//!
//! Some of a configuration can be changed in a proxy that runs: whether it refuses, and who may use
//! how much. The rest (where it listens, by how many threads, with which timeouts and
//! certificates) is part of everything in it. So for that a second one is started, in this process
//! and at the same sockets, and the first is replaced as by a successor from outside. What the
//! first has learnt of the program the second learns again. If the second cannot start, there was
//! none.

use tidegate::Criticality;
use tidegate::life::Phase;
use tidegate_proxy::config::Role;
use tidegate_proxy::{Incumbent, Proxy, ProxyError};
use tokio::sync::watch;

pub(super) struct Reign {
    proxy: Proxy,
    retired: Vec<Proxy>,
    incumbent: watch::Sender<Incumbent>,
    /// What those did that are over: handed on, and not finished.
    done: (u64, u64),
}

impl Reign {
    pub(super) fn new(proxy: Proxy) -> Self {
        let incumbent = watch::Sender::new(proxy.incumbent());
        Self { proxy, retired: Vec::new(), incumbent, done: (0, 0) }
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

    /// Goes on with another, that does what `role` says.
    pub(super) async fn succeed(&mut self, role: Role) -> Result<(), ProxyError> {
        let before = self.proxy.incumbent();
        let proxy = Proxy::succeed(role, before.legacy()?)?;
        proxy.life().reached(Phase::Serving).await;
        self.incumbent.send_replace(proxy.incumbent());
        before.replaced(proxy.taken());
        self.retired.push(core::mem::replace(&mut self.proxy, proxy));
        Ok(())
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
    pub(super) async fn over(&self) {
        for proxy in self.retired.iter().chain([&self.proxy]) {
            proxy.life().reached(Phase::Gone).await;
        }
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

fn end(proxy: Proxy, done: &mut (u64, u64)) -> Result<(), ProxyError> {
    let task = proxy.task().clone();
    let ended = proxy.join();
    let requests = task.snapshot().requests;
    done.0 += Criticality::ALL.into_iter().map(|c| requests.admitted(c)).sum::<u64>();
    done.1 += requests.inflight();
    ended
}
