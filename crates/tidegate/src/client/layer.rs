//! The layer, and how it is set up.

use super::service::Service;
use super::shared::{Counts, Shared};
use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::Criticality;
use tidegate_core::levels::Levels;
use tidegate_core::retry::{BudgetConfig, RetryPolicy};
use tidegate_core::throttle::ThrottleConfig;

/// Which requests may be sent again when it is not known what became of them. Refused ones always
/// may: whoever refused says that nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Repeat {
    /// Those that never reached a backend, and those whose method promises that twice is as good
    /// as once (`GET`, `PUT`, `DELETE` and the like; gRPC's `POST` promises nothing).
    #[default]
    Idempotent,
    /// All. For services of which one knows that they do not mind.
    All,
    /// Only those that never reached a backend.
    Unsent,
}

#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) service: Arc<str>,
    pub(super) criticality: Criticality,
    pub(super) timeout: Duration,
    pub(super) attempt_timeout: Duration,
    pub(super) throttle: ThrottleConfig,
    pub(super) policy: RetryPolicy,
    pub(super) budget: BudgetConfig,
    pub(super) repeat: Repeat,
    pub(super) kept_bytes_max: usize,
    pub(super) propagate: bool,
    pub(super) seed: Option<u64>,
}

/// Sets up a [`Layer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    config: Config,
}

impl Builder {
    /// How much requests matter of which nothing else says so: `CRITICAL`.
    ///
    /// What says so is, first hit wins: a [`Criticality`] in the request's extensions, the request
    /// that is being served, the headers.
    pub const fn criticality(mut self, criticality: Criticality) -> Self {
        self.config.criticality = criticality;
        self
    }

    /// How long the head of an answer is waited for, all attempts together: 60 s.
    ///
    /// A request with a deadline of its own waits no longer than that; what it inherits or says
    /// itself goes out with it, this time does not. Everything needs an end: an attempt that waits
    /// for ever is never counted, and the throttle would not notice a backend that has gone silent.
    /// A minute is as long as common proxies wait. `Duration::MAX` waits for ever.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = timeout;
        self
    }

    /// How long the head of an answer is waited for in one attempt: as long as there is time.
    ///
    /// An endpoint that has gone silent, behind a partition for instance, costs a request all of
    /// its time otherwise. Only those that may be sent twice ([`Builder::repeat`]) are then tried
    /// again. Too short a time repeats what would have been answered; take a few times the slowest
    /// percent.
    pub const fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.config.attempt_timeout = timeout;
        self
    }

    /// How the client throttles itself.
    pub const fn throttle(mut self, throttle: ThrottleConfig) -> Self {
        self.config.throttle = throttle;
        self
    }

    /// How often a request is tried.
    pub const fn retries(mut self, policy: RetryPolicy) -> Self {
        self.config.policy = policy;
        self
    }

    /// How many retries there may be in all.
    pub const fn budget(mut self, budget: BudgetConfig) -> Self {
        self.config.budget = budget;
        self
    }

    /// Which requests may be sent again when it is not known what became of them.
    pub const fn repeat(mut self, repeat: Repeat) -> Self {
        self.config.repeat = repeat;
        self
    }

    /// How many bytes of a request's body are kept for a retry: 64 KiB. Larger requests are not
    /// retried. A thousand requests under way then hold no more than 64 MiB, and what is larger is
    /// mostly uploads, which cost more to repeat than they gain.
    pub const fn kept_bytes_max(mut self, bytes: usize) -> Self {
        self.config.kept_bytes_max = bytes;
        self
    }

    /// Whether requests say how much they matter, until when, and which try they are: yes. Turn it
    /// off towards hosts that are not yours.
    pub const fn propagate(mut self, propagate: bool) -> Self {
        self.config.propagate = propagate;
        self
    }

    /// Decides what is left to chance, for tests.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.config.seed = Some(seed);
        self
    }

    /// The layer.
    pub fn build(self) -> Layer {
        Layer { shared: Arc::new(Shared::new(self.config)) }
    }
}

/// Puts throttle, retries and propagation around a client. One for each backend service; clones
/// are the same one, and so are all services that it makes.
///
/// ```
/// use tidegate::client::Layer;
/// use tower_layer::Layer as _;
/// # fn example<C: Clone>(client: C) {
/// let inventory = Layer::new("inventory").layer(client);
/// # }
/// ```
#[derive(Clone)]
pub struct Layer {
    pub(super) shared: Arc<Shared>,
}

impl Layer {
    /// With the defaults, for the backend service of this name.
    pub fn new(service: &str) -> Self {
        Self::builder(service).build()
    }

    /// To be set up.
    pub fn builder(service: &str) -> Builder {
        Builder {
            config: Config {
                service: service.into(),
                criticality: Criticality::default(),
                timeout: Duration::from_secs(60),
                attempt_timeout: Duration::MAX,
                throttle: ThrottleConfig::default(),
                policy: RetryPolicy::default(),
                budget: BudgetConfig::default(),
                repeat: Repeat::default(),
                kept_bytes_max: 64 * 1_024,
                propagate: true,
                seed: None,
            },
        }
    }

    /// The name of the backend service.
    pub fn service(&self) -> &str {
        &self.shared.config.service
    }

    /// What has become of requests so far. For metrics; takes a lock that no request takes.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// How many retries the budget has left at present.
    pub fn budget_left(&self) -> f64 {
        self.shared.budget_left()
    }

    /// The shares of requests that are sent at present, by criticality.
    pub fn levels(&self) -> Levels {
        self.shared.levels()
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("service", &self.service()).finish_non_exhaustive()
    }
}

impl<S> tower_layer::Layer<S> for Layer {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Service<S> {
        Service::new(inner, Arc::clone(&self.shared))
    }
}
