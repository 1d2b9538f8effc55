//! Who may do what, by the identity that a connection has proved.
//!
//! A task that could report for another service would move its limits, and a client that could ask
//! for another customer would use them up. Names in messages prove nothing; the certificate of the
//! connection does, signed by a root that the server's file names.
//!
//! | whoever is | may |
//! |---|---|
//! | in `tasks` of a service | report for it, and see its status |
//! | in `zones` of a service | the same, for other tasks as well: by any name, and with any weight |
//! | in `envoys` of a service | ask and report by RLS and RLQS, for all its customers |
//! | in `identities` of a customer | the same for that customer, and nobody else |
//! | in `clients` of a template of Doorman, or of all | ask for and release such resources |
//! | in `servers` of Doorman | ask for any resource, for many clients |
//! | in `operators` | see the status of everything |
//!
//! Clients of Doorman choose their own names. A lease therefore belongs to the identity *and* the
//! name: whoever uses another's name has a lease of its own, and cannot release theirs. The lease
//! of a server of the tree belongs to its name only: those that are elected after each other are
//! on several hosts, each of which may have a certificate of its own, and `servers` are believed.
//!
//! Whoever stands for others takes the place of the one before by its name and the number of an
//! election, and with it all that a zone has. Names and numbers prove nothing: it has to be the
//! same identity, or one of `zones`. Where a service has these, nobody else stands for others.
//!
//! **When it is wrong.** Who is not in the list is refused by `PERMISSION_DENIED` with its identity
//! and the name of the list, so that a missing line is found by whoever misses it. Nothing is told
//! of services that the caller has no part in, not even that they are there. Where callers are not
//! asked for certificates everyone may do everything: the server listens on loopback then, or was
//! told to trust its network.

use crate::config::Config;
use arc_swap::ArcSwap;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate::serve::Peer;
use tidegate_core::doorman::Repository;
use tidegate_core::fleet::Speaker;
use tidegate_tls::Clients;
use tidegate_wire::customer::IdentityPattern;
use tonic::{Request, Status};

/// Who may do what.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Access {
    /// Nobody proves anything, and everyone is believed.
    #[default]
    Open,
    /// By identity.
    Listed(Box<Lists>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lists {
    operators: Vec<IdentityPattern>,
    services: BTreeMap<String, ServiceAccess>,
    doorman: Option<DoormanAccess>,
}

impl Lists {
    /// Whether somebody asks for Doorman's resources for many clients.
    fn is_server(&self, identity: &str) -> bool {
        self.doorman.as_ref().is_some_and(|doorman| fits(&doorman.servers, identity))
    }
}

/// Whom a service listens to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceAccess {
    /// May report for it.
    pub tasks: Vec<IdentityPattern>,
    /// May report for it, and stand for other tasks.
    pub zones: Vec<IdentityPattern>,
    /// May ask for all its customers by the protocols of Envoy.
    pub envoys: Vec<IdentityPattern>,
    /// May ask for this customer.
    pub customers: Vec<(IdentityPattern, String)>,
}

impl ServiceAccess {
    pub(crate) fn is_closed(&self) -> bool {
        let lists = [&self.tasks, &self.zones, &self.envoys];
        lists.into_iter().all(Vec::is_empty) && self.customers.is_empty()
    }

    fn may_report(&self, identity: &str) -> bool {
        fits(&self.tasks, identity) || fits(&self.zones, identity)
    }
}

/// Whoever may report, and by which right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reporter {
    /// Nothing where nobody proves anything.
    pub(crate) identity: Option<String>,
    /// It may stand for others by any name.
    pub(crate) named: bool,
    /// It stands for itself only.
    pub(crate) alone: bool,
}

impl Reporter {
    /// As the book of a service asks.
    pub(crate) fn speaker(&self, reign: u64) -> Speaker<'_> {
        Speaker { reign, identity: self.identity.as_deref(), named: self.named }
    }
}

/// Who may ask for Doorman's resources.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DoormanAccess {
    /// To find the one that a resource is made by; nothing if a server above has them.
    pub(crate) templates: Option<Repository>,
    /// May ask for resources of the template with this glob.
    pub(crate) clients: BTreeMap<String, Vec<IdentityPattern>>,
    /// May ask for any, for many clients.
    pub(crate) servers: Vec<IdentityPattern>,
}

/// For whom somebody may speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Voice {
    /// For all customers.
    Everyone,
    /// For this one.
    One(String),
}

impl Voice {
    /// Refuses whoever speaks for somebody else.
    pub(crate) fn speaks_for(&self, customer: &str) -> Result<(), Status> {
        match self {
            Self::One(own) if own != customer => Err(Status::permission_denied(format!(
                "the caller may speak for customer {own:?} only, and not for {customer:?}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Whoever has sent a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller(Option<Peer>);

impl Caller {
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self(request.extensions().get::<Peer>().cloned())
    }

    fn identity(&self) -> Option<&str> {
        self.0.as_ref()?.identity()
    }
}

impl Access {
    /// As a configuration says.
    pub(crate) fn of(config: &Config) -> Self {
        if !config.identified() {
            return Self::Open;
        }
        let services = config.services.iter();
        Self::Listed(Box::new(Lists {
            operators: config.operators.clone(),
            services: services.map(|(name, s)| (name.clone(), s.access.clone())).collect(),
            doorman: config.doorman_access.clone(),
        }))
    }

    /// The same with other operators.
    pub(crate) fn with_operators(&self, operators: &[IdentityPattern]) -> Self {
        let mut access = self.clone();
        if let Self::Listed(lists) = &mut access {
            lists.operators = operators.to_vec();
        }
        access
    }

    /// Whether `caller` is a task of any service, or an operator.
    pub(crate) fn takes_part(&self, caller: &Caller) -> bool {
        let Self::Listed(lists) = self else { return true };
        lists.services.keys().any(|service| self.sees(caller, service)) || self.operates(caller)
    }

    /// Whether `caller` may report for a service, and how; for others, if it `stands` for them.
    pub(crate) fn report(
        &self,
        caller: &Caller,
        service: &str,
        stands: bool,
    ) -> Result<Reporter, Status> {
        let Self::Listed(lists) = self else { return Ok(Reporter::default()) };
        let identity = proved(caller)?;
        let access = lists.services.get(service).filter(|access| access.may_report(identity));
        let Some(access) = access else {
            return Err(denied(identity, &format!("report for service {service:?}"), "tasks"));
        };
        let named = fits(&access.zones, identity);
        let alone = !named && !access.zones.is_empty();
        if stands && alone {
            let what = format!("stand for other tasks of service {service:?}");
            return Err(denied(identity, &what, "zones"));
        }
        Ok(Reporter { identity: Some(identity.to_owned()), named, alone })
    }

    /// For whom `caller` may speak in the domain of a service.
    pub(crate) fn speak(&self, caller: &Caller, service: &str) -> Result<Voice, Status> {
        let Self::Listed(lists) = self else { return Ok(Voice::Everyone) };
        let identity = proved(caller)?;
        let access = lists.services.get(service);
        if access.is_some_and(|access| fits(&access.envoys, identity)) {
            return Ok(Voice::Everyone);
        }
        let own = access
            .and_then(|access| access.customers.iter().find(|(pattern, _)| pattern.fits(identity)));
        own.map(|(_, name)| Voice::One(name.clone()))
            .ok_or_else(|| denied(identity, &format!("speak in domain {service:?}"), "envoys"))
    }

    /// Whether `caller` may ask for a resource of Doorman's; for many clients, if it is a server.
    pub(crate) fn lease(
        &self,
        caller: &Caller,
        resource: &str,
        for_many: bool,
    ) -> Result<(), Status> {
        let Self::Listed(lists) = self else { return Ok(()) };
        let identity = proved(caller)?;
        if lists.is_server(identity) {
            return Ok(());
        }
        if for_many {
            return Err(denied(identity, "ask for clients of its own", "servers"));
        }
        let clients = lists.doorman.as_ref().and_then(|doorman| {
            let template = doorman.templates.as_ref().map(|templates| templates.find(resource));
            doorman.clients.get(template.map_or("*", |template| template.glob().as_str()))
        });
        if clients.is_some_and(|clients| fits(clients, identity)) {
            return Ok(());
        }
        Err(denied(identity, &format!("ask for resource {resource:?}"), "clients"))
    }

    /// Under what `caller` has leases, if it calls itself `name`: for its own use, or for clients
    /// of its own. Servers of the tree are one by their name, whatever each of their hosts shows.
    /// Identities have no blanks, and are not empty.
    pub(crate) fn lessee<'a>(
        &self,
        caller: &Caller,
        name: &'a str,
        for_many: bool,
    ) -> Cow<'a, str> {
        match (self, caller.identity()) {
            (Self::Listed(lists), Some(identity)) if for_many && lists.is_server(identity) => {
                Cow::Owned(format!(" {name}"))
            }
            (_, Some(identity)) => Cow::Owned(format!("{identity} {name}")),
            (_, None) => Cow::Borrowed(name),
        }
    }

    /// Whether `caller` may see how a service stands.
    pub(crate) fn sees(&self, caller: &Caller, service: &str) -> bool {
        let Self::Listed(lists) = self else { return true };
        caller.identity().is_some_and(|identity| {
            let access = lists.services.get(service);
            fits(&lists.operators, identity)
                || access.is_some_and(|access| access.may_report(identity))
        })
    }

    /// Whether `caller` may see what is wrong with the server's file.
    pub(crate) fn operates(&self, caller: &Caller) -> bool {
        let Self::Listed(lists) = self else { return true };
        caller.identity().is_some_and(|identity| fits(&lists.operators, identity))
    }

    /// What to tell whoever may not see a service, or any.
    pub(crate) fn unseen(caller: &Caller, service: &str) -> Status {
        let what = if service.is_empty() {
            "see how any service stands".to_owned()
        } else {
            format!("see how service {service:?} stands")
        };
        proved(caller).map_or_else(|status| status, |who| denied(who, &what, "operators"))
    }
}

/// What a stream was allowed, which may outlive the lists that it was allowed by.
#[derive(Debug)]
pub(crate) struct Pass {
    access: Arc<ArcSwap<Access>>,
    seen: Arc<Access>,
    caller: Caller,
    service: String,
}

impl Pass {
    pub(crate) fn new(access: &Arc<ArcSwap<Access>>, caller: Caller, service: &str) -> Self {
        let seen = access.load_full();
        Self { access: Arc::clone(access), seen, caller, service: service.to_owned() }
    }

    /// Whether its holder may report, and how.
    pub(crate) fn report(&self, stands: bool) -> Result<Reporter, Status> {
        self.seen.report(&self.caller, &self.service, stands)
    }

    /// For whom its holder may speak.
    pub(crate) fn speak(&self) -> Result<Voice, Status> {
        self.seen.speak(&self.caller, &self.service)
    }

    /// Whether there are other lists than before, so that it has to be asked again.
    pub(crate) fn is_stale(&mut self) -> bool {
        if Arc::ptr_eq(&self.seen, &self.access.load()) {
            return false;
        }
        self.seen = self.access.load_full();
        true
    }
}

/// Whether callers of a server with these certificates prove who they are.
pub(crate) const fn proves(clients: &Clients) -> bool {
    matches!(clients, Clients::Required(_))
}

fn fits(list: &[IdentityPattern], identity: &str) -> bool {
    list.iter().any(|pattern| pattern.fits(identity))
}

fn proved(caller: &Caller) -> Result<&str, Status> {
    caller.identity().ok_or_else(|| {
        Status::unauthenticated(
            "the caller's certificate names nobody: it needs one SPIFFE ID, or a name of DNS",
        )
    })
}

fn denied(identity: &str, what: &str, list: &str) -> Status {
    Status::permission_denied(format!(
        "{identity} may not {what}: `{list}` in the server's file says who may"
    ))
}
