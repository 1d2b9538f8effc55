//! What one address may do, however many connections it has.
//!
//! A stranger is known by its address and by nothing else. Each has a count of its connections and
//! one of its requests in flight, and a bucket for how fast either may come. IPv6 addresses count
//! by their first 64 bits: whoever has one has all of those.
//!
//! **Bounded.** An address is forgotten once it has no connection and its buckets are full again,
//! as then there is nothing to know about it. There is room for a number of addresses, more than
//! there may be connections by default. When that is full of those that cannot be forgotten, all
//! that are new share one account: with ten thousand attackers the limit of one holds for all of
//! those that come late, and those that were there first are served.
//!
//! **When it is wrong.** Many people behind one address (an office, a phone network, a proxy in
//! front of us) are one client here. So the limits are high unless somebody lowers them.

use core::hash::Hash;
use core::time::Duration;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tidegate_core::units::{InvalidNumber, Ratio};
use tidegate_core::{Criticality, Timestamp};

/// Twice as many as there may be connections if nobody says: some 5 MiB.
const CLIENTS_MAX: usize = 20_000;

/// How often those are looked for who can be forgotten: to look at all of them takes less than a
/// millisecond, and must not be done for each newcomer of a flood.
const SWEEP: Duration = Duration::from_secs(1);

/// How many at once, and how many a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allowance {
    /// At once; none for any number.
    pub at_once: Option<u32>,
    /// A second, in the long run; none for any number.
    pub per_second: Option<u32>,
    /// After a quiet time; as many as a second brings if not said.
    pub burst: Option<u32>,
}

impl Allowance {
    /// Any number.
    pub const UNLIMITED: Self = Self { at_once: None, per_second: None, burst: None };

    /// So many at once, however fast.
    pub const fn at_once(count: u32) -> Self {
        Self { at_once: Some(count), ..Self::UNLIMITED }
    }

    /// So many a second.
    pub const fn per_second(count: u32) -> Self {
        Self { per_second: Some(count), ..Self::UNLIMITED }
    }

    pub(super) fn gate(self) -> Result<ConnectionGate, InvalidNumber> {
        let mut limits = ConnectionLimits::default();
        limits.open_max = self.at_once.map_or(u64::MAX, u64::from);
        limits.accepts_per_second = self.per_second.unwrap_or(u32::MAX);
        limits.burst = self.burst.or(self.per_second).unwrap_or(u32::MAX);
        limits.room = [Ratio::percent(100); Criticality::COUNT];
        ConnectionGate::new(limits)
    }
}

/// One address.
#[derive(Debug)]
pub(crate) struct Client {
    connections: ConnectionGate,
    requests: ConnectionGate,
}

impl Client {
    fn new(connections: Allowance, requests: Allowance) -> Result<Arc<Self>, InvalidNumber> {
        Ok(Arc::new(Self { connections: connections.gate()?, requests: requests.gate()? }))
    }

    /// Whether there may be one more request; it is over when what is returned is dropped.
    pub(crate) fn request(self: &Arc<Self>, now: Timestamp) -> Option<Guard> {
        self.requests.accept(None, now).ok()?;
        Some(Guard { client: Arc::clone(self), connection: false })
    }

    fn is_quiet(&self, now: Timestamp) -> bool {
        self.connections.is_quiet(now) && self.requests.is_quiet(now)
    }
}

/// A connection or a request of a client, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    client: Arc<Client>,
    connection: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.connection {
            self.client.connections.release();
        } else {
            self.client.requests.release();
        }
    }
}

/// All addresses that are known.
#[derive(Debug)]
pub(crate) struct Clients {
    known: Mutex<Known<IpAddr>>,
    /// Whoever finds no room.
    others: Arc<Client>,
    connections: Allowance,
    requests: Allowance,
}

#[derive(Debug)]
struct Known<K> {
    clients: HashMap<K, Arc<Client>>,
    max: usize,
    swept: Timestamp,
}

impl<K: Hash + Eq> Known<K> {
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.clients.retain(|_, client| Arc::strong_count(client) > 1 || !client.is_quiet(now));
    }
}

impl Clients {
    pub(crate) fn new(connections: Allowance, requests: Allowance) -> Result<Self, InvalidNumber> {
        Self::with_room(CLIENTS_MAX, connections, requests)
    }

    fn with_room(
        max: usize,
        connections: Allowance,
        requests: Allowance,
    ) -> Result<Self, InvalidNumber> {
        let others = Client::new(connections, requests)?;
        let known = Known { clients: HashMap::new(), max, swept: Timestamp::ZERO };
        Ok(Self { known: Mutex::new(known), others, connections, requests })
    }

    /// The client at `address`.
    pub(crate) fn at(&self, address: SocketAddr, now: Timestamp) -> Arc<Client> {
        let key = key(address.ip());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known.clients.get(&key) {
            return Arc::clone(client);
        }
        known.sweep(now);
        if known.clients.len() >= known.max {
            return Arc::clone(&self.others);
        }
        let Ok(client) = Client::new(self.connections, self.requests) else {
            return Arc::clone(&self.others);
        };
        known.clients.insert(key, Arc::clone(&client));
        client
    }

    /// Whether `address` may have one more connection; it is closed when what is returned is
    /// dropped.
    pub(crate) fn connection(&self, address: SocketAddr, now: Timestamp) -> Option<Guard> {
        let client = self.at(address, now);
        client.connections.accept(None, now).ok()?;
        Some(Guard { client, connection: true })
    }
}

/// What an address is known by.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let mut parts = v6.segments();
            parts[4..].fill(0);
            IpAddr::V6(parts.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        format!("{text}:1").parse().unwrap()
    }

    const fn second(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn addresses_by_hand() {
        for (address, known_by) in [
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2::", "2001:db8:1:2::"),
            ("2001:db8:1:3::", "2001:db8:1:3::"),
        ] {
            assert_eq!(key(address.parse().unwrap()), known_by.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn each_has_its_own_and_it_comes_back() {
        let mut rate = Allowance::at_once(2);
        (rate.per_second, rate.burst) = (Some(1), Some(3));
        let clients = Clients::new(Allowance::at_once(2), rate).unwrap();
        let (a, b) = (at("10.0.0.1"), at("10.0.0.2"));
        let first = clients.connection(a, second(0)).unwrap();
        let _second = clients.connection(a, second(0)).unwrap();
        assert!(clients.connection(a, second(0)).is_none());
        assert!(clients.connection(b, second(0)).is_some());
        drop(first);
        assert!(clients.connection(a, second(0)).is_some());
        // Two at once; three in a burst, then one a second.
        let client = clients.at(a, second(0));
        let held = (client.request(second(0)).unwrap(), client.request(second(0)).unwrap());
        assert!(client.request(second(0)).is_none());
        drop(held);
        assert!(client.request(second(0)).is_some());
        assert!(client.request(second(0)).is_none());
        assert!(client.request(second(1)).is_some());
        assert!(client.request(second(1)).is_none());
        assert!(clients.at(b, second(1)).request(second(1)).is_some());
    }

    #[test]
    fn there_is_room_for_so_many_and_the_rest_share() {
        let clients = Clients::with_room(2, Allowance::at_once(1), Allowance::UNLIMITED).unwrap();
        let connect = |address: &str, now| clients.connection(at(address), now);
        let a = connect("10.0.0.1", second(10)).unwrap();
        let _b = connect("10.0.0.2", second(10)).unwrap();
        let c = connect("10.0.0.3", second(20)).unwrap();
        assert!(connect("10.0.0.4", second(20)).is_none(), "c has the place of all others");
        assert!(connect("10.0.0.1", second(20)).is_none(), "a is known");
        drop(c);
        assert!(connect("10.0.0.4", second(20)).is_some());
        // Whoever leaves makes room, but nobody looks for that more than once a second.
        drop(a);
        let _c = connect("10.0.0.3", second(20)).unwrap();
        assert!(connect("10.0.0.5", second(20)).is_none());
        let _d = connect("10.0.0.5", second(21)).unwrap();
        assert_eq!(clients.known.lock().unwrap().clients.len(), 2);
    }
}
