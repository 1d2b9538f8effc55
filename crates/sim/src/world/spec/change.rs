//! What may change while a world runs.

use core::time::Duration;
use tidegate_core::fleet::Limits;

/// Something that changes at some moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A group asks at another rate.
    Rate {
        /// Which group.
        client: usize,
        /// Requests a second.
        rate: f64,
    },
    /// Tasks run slower or faster: an antagonist comes or goes, a cold start ends.
    Speed {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// As a multiple of what the machine can do.
        factor: f64,
    },
    /// Requests to a service cost more or less: a release.
    Cost {
        /// Which service.
        service: usize,
        /// As a multiple of what they did.
        factor: f64,
    },
    /// Tasks fail every request at once, or stop doing so.
    FailFast {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// Whether they do.
        fails: bool,
    },
    /// Tasks are gone with all they had, or come back.
    Down {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// Whether they are gone.
        down: bool,
    },
    /// Tasks join that nobody knew of before, and clients work out their subsets anew.
    Join {
        /// Which service.
        service: usize,
        /// Which of its tasks: the last ones, or indexes have holes.
        tasks: core::ops::Range<usize>,
    },
    /// Tasks restart: lame duck, then down, then up and slow until they have warmed up. Balancers
    /// see them leave and join.
    Restart {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// How long they are lame ducks first; zero is not at all, and what they have is lost.
        lame_duck: Duration,
        /// How long they are down.
        down_for: Duration,
        /// How long they take to warm up.
        cold_for: Duration,
        /// Their speed at first, as a share of what the machine can do. It rises in a straight
        /// line.
        cold_speed: f64,
    },
    /// A customer's limits for the whole fleet change. Only with a quota server.
    Limits {
        /// Which customer.
        customer: usize,
        /// Its limits from now on.
        limits: Limits,
    },
    /// The quota server cannot be reached, or can be again with all that it knew.
    QuotaServer {
        /// Whether it is out of reach.
        lost: bool,
    },
    /// Another quota server is elected, which knows nothing but the configuration.
    QuotaElection,
    /// A datacenter is lost with all its tasks, or comes back.
    Datacenter {
        /// Which one.
        datacenter: usize,
        /// Whether it is lost.
        lost: bool,
    },
    /// All machines of a datacenter run at a part of their speed, and say so.
    DatacenterSpeed {
        /// Which one.
        datacenter: usize,
        /// As a multiple of what the machines can do.
        factor: f64,
    },
    /// A server of leases cannot be reached, or can be again with all that it knew.
    Doorman {
        /// Which server.
        server: usize,
        /// Whether it is out of reach.
        lost: bool,
    },
    /// Another master takes over a server of leases, knows no lease, and learns.
    DoormanElection {
        /// Which server.
        server: usize,
    },
    /// A server of leases has another capacity to give.
    DoormanCapacity {
        /// Which server.
        server: usize,
        /// Requests a second.
        capacity: f64,
    },
}
