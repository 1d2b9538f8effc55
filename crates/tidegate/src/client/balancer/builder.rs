//! How a balancer is set up.

use super::super::error::BoxError;
use super::super::keeper::{Time, Watch};
use super::super::lanes::Dice;
use super::discovery::{Discovery, Endpoint};
use super::food::{Prober, Reporter};
use super::gates::Gates;
use super::members::{Members, Parts};
use super::spill::{Spill, Spilling};
use super::{Balancer, Shared};
use arc_swap::ArcSwap;
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex};
use tidegate_core::balance::{
    LeastLoaded, LeastLoadedConfig, Policy, Prequal, PrequalConfig, RoundRobin, SlowStart,
    Weighted, WeightedConfig,
};
use tidegate_core::subset::SubsetPolicy;
use tidegate_core::units::InvalidNumber;
use tokio::sync::watch;

/// Makes the service of an endpoint.
pub(super) type Maker<S> = dyn Fn(&Endpoint) -> Result<S, BoxError> + Send + Sync;

/// How a balancer picks. [`tidegate_core::balance`] says what each is good for.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Balance {
    /// Each in turn.
    RoundRobin(SlowStart),
    /// The fewest active requests and recent errors.
    LeastLoaded(LeastLoadedConfig),
    /// In proportion to what load reports say.
    Weighted(WeightedConfig),
    /// By probes; wants a [`Prober`].
    Prequal(PrequalConfig),
}

impl Default for Balance {
    /// Least loaded: it needs nothing from the backends.
    fn default() -> Self {
        Self::LeastLoaded(LeastLoadedConfig::default())
    }
}

/// As many endpoints as the other policies have room for unless told otherwise.
const BACKENDS_MAX: usize = 1_024;

impl Balance {
    fn policy(self) -> Result<Policy, InvalidNumber> {
        Ok(match self {
            Self::RoundRobin(slow_start) => {
                RoundRobin::new(BACKENDS_MAX).with_slow_start(slow_start).into()
            }
            Self::LeastLoaded(config) => LeastLoaded::new(config).into(),
            Self::Weighted(config) => Weighted::new(config)?.into(),
            Self::Prequal(config) => Prequal::new(config)?.into(),
        })
    }
}

/// Which part of the endpoints a client connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subset {
    /// How subsets are chosen.
    pub policy: SubsetPolicy,
    /// The number of this client among its like, from 0 without holes.
    pub client: u64,
    /// How many endpoints it connects to.
    pub size: u32,
}

/// Sets up a [`Balancer`].
#[must_use]
pub struct BalancerBuilder<S> {
    discovery: Discovery,
    make: Box<Maker<S>>,
    balance: Balance,
    subset: Option<Subset>,
    spill: Option<Spill>,
    prober: Option<Arc<dyn Prober<S>>>,
    reporter: Option<Arc<dyn Reporter<S>>>,
    lame_duck_wait: Duration,
    seed: Option<u64>,
}

impl<S> fmt::Debug for BalancerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancerBuilder")
            .field("discovery", &self.discovery)
            .field("balance", &self.balance)
            .field("subset", &self.subset)
            .finish_non_exhaustive()
    }
}

impl<S: Clone + Send + Sync + 'static> BalancerBuilder<S> {
    pub(super) fn new<E: Into<BoxError>>(
        discovery: Discovery,
        make: impl Fn(&Endpoint) -> Result<S, E> + Send + Sync + 'static,
    ) -> Self {
        Self {
            discovery,
            make: Box::new(move |endpoint| make(endpoint).map_err(Into::into)),
            balance: Balance::default(),
            subset: None,
            spill: None,
            prober: None,
            reporter: None,
            lame_duck_wait: Duration::from_secs(30),
            seed: None,
        }
    }

    /// How to pick: the least loaded.
    pub const fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// To connect to some of the endpoints only: to all.
    pub const fn subset(mut self, subset: Subset) -> Self {
        self.subset = Some(subset);
        self
    }

    /// To spread over datacenters: there is only one.
    pub fn spill(mut self, spill: Spill) -> Self {
        self.spill = Some(spill);
        self
    }

    /// Who probes, for [`Balance::Prequal`].
    pub fn prober(mut self, prober: impl Prober<S>) -> Self {
        self.prober = Some(Arc::new(prober));
        self
    }

    /// Who gets load reports on a stream: nobody, they come with answers.
    pub fn reporter(mut self, reporter: impl Reporter<S>) -> Self {
        self.reporter = Some(Arc::new(reporter));
        self
    }

    /// How long an endpoint that said it is shutting down is left alone: 30 s, about what draining
    /// and starting again take. If it is a lame duck still, its next answer says so.
    pub const fn lame_duck_wait(mut self, wait: Duration) -> Self {
        self.lame_duck_wait = wait;
        self
    }

    /// Decides what is left to chance, for tests.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The balancer.
    pub fn build(self) -> Result<Balancer<S>, InvalidNumber> {
        let datacenters = self.spill.as_ref().map_or(1, |spill| spill.distances.len().max(1));
        let mut policies =
            (0..datacenters).map(|_| self.balance.policy()).collect::<Result<Vec<_>, _>>()?;
        let lanes = policies.iter_mut().map(Policy::lanes).collect();
        let (time, dice) = (Time::begin(), Dice::new(self.seed));
        let (rng, watch) = (dice.next(), Watch::default());
        let gates = Arc::new(Gates::new(time, lanes, dice));
        let spilling = self.spill.map(Spilling::new);
        let places = spilling.as_ref().map_or_else(Vec::new, |spilling| {
            spilling.distances.iter().map(|(datacenter, _)| *datacenter).collect()
        });
        let members = Members::new(Parts {
            discovery: self.discovery,
            make: self.make,
            subset: self.subset,
            policies,
            spilling,
            reporter: self.reporter,
            lame_duck_wait: self.lame_duck_wait,
            gates: Arc::clone(&gates),
            nudge: Arc::clone(watch.nudge()),
            rng,
        });
        let shared = Shared {
            table: ArcSwap::from_pointee(Vec::new()),
            spill: ArcSwap::from_pointee(None),
            places,
            gates,
            members: Mutex::new(members),
            watch,
            found: watch::Sender::new(false),
            prober: self.prober,
            wants_reports: matches!(self.balance, Balance::Weighted(_)),
        };
        Ok(Balancer { shared: Arc::new(shared) })
    }
}
