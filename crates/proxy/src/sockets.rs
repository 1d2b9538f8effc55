//! Where a proxy listens, and who listens there after it.
//!
//! Each worker has a socket of its own at one address, and the kernel deals connections out to them
//! (`SO_REUSEPORT`). That makes a restart dangerous: a connection belongs to the socket it was
//! dealt to before anybody has taken it, and is reset when that is closed, also where ten others
//! listen at the address. So a successor is not to open its own sockets beside ours. It is given
//! *the very same*, by reference, and whoever waits in their queues is taken by one of us.
//!
//! ```text
//! Sockets::listen --> Ears (one a worker) --> accept
//!        |              ^ let go of when a successor serves
//!        '-> Register --'--> Legacy: the same sockets once more, for a successor
//! ```
//!
//! A successor may have other workers: more of them open more sockets, fewer hear at several each.
//! None is ever closed but at the end of the last proxy, or by one that listens elsewhere.
//!
//! The register has a second reference to each socket. It is dropped together with the first, or
//! the kernel would go on completing connections that nobody takes.

use crate::run::ProxyError;
use core::future::poll_fn;
use core::task::Poll;
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::serve::Listener;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Connections that wait to be taken, at each worker.
const BACKLOG: u32 = 1024;

/// Sockets at one address, as they go to a successor.
#[derive(Debug)]
pub(crate) struct Group {
    /// Which of the one who had them.
    pub(crate) number: usize,
    /// What was asked for: the port may have been left to the system.
    pub(crate) asked: SocketAddr,
    pub(crate) sockets: Vec<TcpListener>,
}

/// What a proxy leaves to its successor.
#[derive(Debug, Default)]
pub struct Legacy {
    pub(crate) groups: Vec<Group>,
}

impl Legacy {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// The sockets that a proxy listens at.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    legacy: Legacy,
    succeeds: bool,
    taken: BTreeSet<usize>,
    count: usize,
    register: Arc<Register>,
}

/// What is listened at, for a successor.
#[derive(Debug)]
pub(crate) struct Register {
    groups: Mutex<Vec<Group>>,
    /// Groups that somebody else has taken over.
    given: watch::Sender<BTreeSet<usize>>,
}

impl Default for Register {
    fn default() -> Self {
        Self { groups: Mutex::default(), given: watch::Sender::new(BTreeSet::new()) }
    }
}

impl Register {
    /// Nothing in here panics.
    fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is listened at now, once more.
    pub(crate) fn legacy(&self) -> io::Result<Legacy> {
        let again = |group: &Group| {
            let sockets = group.sockets.iter().map(TcpListener::try_clone);
            Ok(Group { sockets: sockets.collect::<io::Result<_>>()?, ..*group })
        };
        let groups = self.groups().iter().map(again).collect::<io::Result<_>>()?;
        Ok(Legacy { groups })
    }

    /// Somebody else takes connections at these from now on.
    pub(crate) fn give(&self, taken: &BTreeSet<usize>) {
        self.groups().retain(|group| !taken.contains(&group.number));
        self.given.send_modify(|given| given.extend(taken));
    }
}

impl Sockets {
    pub(crate) fn new(legacy: Legacy) -> Self {
        Self { succeeds: !legacy.is_empty(), legacy, ..Self::default() }
    }

    /// Whether there is a predecessor.
    pub(crate) const fn succeeds(&self) -> bool {
        self.succeeds
    }

    /// Those of the predecessor that this one listens at.
    pub(crate) const fn taken(&self) -> &BTreeSet<usize> {
        &self.taken
    }

    /// What is left for a successor.
    pub(crate) fn register(&self) -> Arc<Register> {
        Arc::clone(&self.register)
    }

    /// Ears for `count` workers at one address: those of the predecessor, and new ones.
    pub(crate) fn listen(
        &mut self,
        asked: SocketAddr,
        count: usize,
    ) -> Result<(Vec<Ears>, SocketAddr), ProxyError> {
        let failed = |source| ProxyError::Listen { address: asked, source };
        let mut sockets = self.inherited(asked);
        let mut bound = match sockets.first() {
            Some(socket) => socket.local_addr().map_err(failed)?,
            None => asked,
        };
        // They share the port with each other, and with nobody who was there before.
        if sockets.is_empty() && bound.port() != 0 {
            // Nobody is to be taken by it, so it does not listen.
            drop(open(bound, false).map_err(failed)?);
        }
        while sockets.len() < count.max(1) {
            let socket = bind(bound).map_err(failed)?;
            bound = socket.local_addr().map_err(failed)?;
            sockets.push(socket);
        }
        let copies = sockets.iter().map(TcpListener::try_clone).collect::<io::Result<_>>();
        let copies = copies.map_err(failed)?;
        let number = self.count;
        self.count += 1;
        self.register.groups().push(Group { number, asked, sockets: copies });
        let mut ears: Vec<Ears> = (0..count.max(1))
            .map(|_| Ears { number, sockets: Vec::new(), register: Arc::clone(&self.register) })
            .collect();
        let workers = ears.len();
        for (socket, worker) in sockets.into_iter().zip((0..workers).cycle()) {
            ears[worker].sockets.push(socket);
        }
        Ok((ears, bound))
    }

    /// What the predecessor has at this address, if anything.
    fn inherited(&mut self, asked: SocketAddr) -> Vec<TcpListener> {
        let groups = &mut self.legacy.groups;
        let bound = |group: &Group| group.sockets.first().and_then(|one| one.local_addr().ok());
        let same = groups.iter().position(|group| group.asked == asked);
        let same = same.or_else(|| groups.iter().position(|group| bound(group) == Some(asked)));
        let Some(place) = same else { return Vec::new() };
        let group = groups.remove(place);
        self.taken.insert(group.number);
        group.sockets
    }
}

/// Where one worker hears connections.
#[derive(Debug)]
pub(crate) struct Ears {
    number: usize,
    sockets: Vec<TcpListener>,
    register: Arc<Register>,
}

impl Ears {
    /// To be called within the runtime that takes them.
    pub(crate) fn open(self) -> io::Result<Open> {
        let sockets = self.sockets.into_iter().map(|socket| {
            // Somebody else may have had it.
            socket.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(socket)
        });
        let sockets = sockets.collect::<io::Result<_>>()?;
        let given = self.register.given.subscribe();
        Ok(Open { number: self.number, sockets, next: 0, given, register: self.register })
    }
}

/// [`Ears`] that hear.
#[derive(Debug)]
pub(crate) struct Open {
    number: usize,
    /// None once somebody else has taken over.
    sockets: Vec<tokio::net::TcpListener>,
    /// Which of them is asked first.
    next: usize,
    given: watch::Receiver<BTreeSet<usize>>,
    register: Arc<Register>,
}

impl Open {
    async fn any(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (sockets, count) = (&self.sockets, self.sockets.len());
        let first = self.next;
        let (taken, place) = poll_fn(|context| {
            for place in (0..count).map(|n| (first + n) % count) {
                if let Poll::Ready(taken) = sockets[place].poll_accept(context) {
                    return Poll::Ready((taken, place));
                }
            }
            Poll::Pending
        })
        .await;
        // So that one with much to do does not keep the others waiting.
        self.next = (place + 1) % count;
        taken
    }
}

impl Listener for Open {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (number, mut given) = (self.number, self.given.clone());
        let gone = async {
            // The sender lives in the register, which this one holds.
            let _ = given.wait_for(|given| given.contains(&number)).await;
        };
        if !self.sockets.is_empty() {
            tokio::select! {
                biased;
                () = gone => self.sockets.clear(),
                taken = self.any() => {
                    let (io, address) = taken?;
                    // As for the listener of one socket: answers are written whole.
                    let _ = io.set_nodelay(true);
                    return Ok((io, Some(address)));
                }
            }
        }
        core::future::pending().await
    }

    fn refuse(io: TcpStream) {
        <tokio::net::TcpListener as Listener>::refuse(io);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.register.groups().retain(|group| group.number != self.number);
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = open(address, true)?;
    rustix::net::listen(&socket, i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// A socket at `address`, which others may share or not.
fn open(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}
