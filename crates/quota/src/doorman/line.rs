//! A line to the master of Doorman, wherever that is.
//!
//! Servers are tried in turn; one that is not the master says who is, and that one is next. What
//! fails is tried elsewhere after a pause, half of which is by chance: clients that lost their
//! server must not come back as one.

use crate::link::Route;
use core::time::Duration;
use tidegate_core::rng::Rng;
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_client::CapacityClient;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Who does not answer in so long is tried again, or another.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between attempts that fail, half of it by chance.
const PAUSE: Duration = Duration::from_secs(1);

/// To whom the line leads.
pub(super) type Master = CapacityClient<Channel>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// Somebody could not be reached, or refuses.
    #[error("{server}: {what}")]
    Failed { server: String, what: String },
    /// It is not the master.
    #[error("{server} is not the master")]
    Elsewhere { server: String },
}

/// A line that is opened when it is needed.
#[derive(Debug)]
pub(super) struct Line {
    route: Route,
    open: Option<(Endpoint, Master)>,
}

impl Line {
    pub(super) const fn new(route: Route) -> Self {
        Self { route, open: None }
    }

    /// Asks once. `moved` says whether an answer is that of somebody who is not the master. Who
    /// gives up in the middle keeps the line: there may be something to give back by it.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut Master) -> Result<tonic::Response<T>, Status>,
        moved: impl FnOnce(&T) -> Option<&wire::Mastership>,
    ) -> Result<T, NoAnswer> {
        let open = if let Some(open) = &self.open {
            open.clone()
        } else {
            let open = self.connect().await?;
            self.open.insert(open).clone()
        };
        let answer = self.ask_by(open, question, moved).await;
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    async fn ask_by<T>(
        &mut self,
        (endpoint, mut master): (Endpoint, Master),
        question: impl AsyncFnOnce(&mut Master) -> Result<tonic::Response<T>, Status>,
        moved: impl FnOnce(&T) -> Option<&wire::Mastership>,
    ) -> Result<T, NoAnswer> {
        let server = endpoint.uri().to_string();
        let failed = |what| NoAnswer::Failed { server: server.clone(), what };
        let answer = timeout(PATIENCE, question(&mut master)).await;
        let answer = answer.map_err(|_| failed("no answer".to_owned()))?;
        let answer = answer.map_err(|status| failed(self.route.link.told(&endpoint, &status)))?;
        let answer = answer.into_inner();
        if let Some(mastership) = moved(&answer) {
            self.route.redirect(&endpoint, mastership.master_address.as_deref());
            return Err(NoAnswer::Elsewhere { server });
        }
        Ok(answer)
    }

    /// Whoever was asked last, unless it did not answer.
    pub(super) fn master(&mut self) -> Option<&mut Master> {
        self.open.as_mut().map(|(_, master)| master)
    }

    async fn connect(&mut self) -> Result<(Endpoint, Master), NoAnswer> {
        let endpoint = self.route.next();
        let failed = |what| NoAnswer::Failed { server: endpoint.uri().to_string(), what };
        let channel = timeout(PATIENCE, self.route.link.connect(&endpoint)).await;
        let channel = channel.map_err(|_| failed("no answer".to_owned()))?.map_err(failed)?;
        Ok((endpoint, CapacityClient::new(channel)))
    }
}

/// How long to wait after an attempt that failed.
pub(super) fn pause(dice: &mut impl Rng) -> Duration {
    PAUSE / 2 + Duration::from_secs_f64(PAUSE.as_secs_f64() / 2.0 * dice.unit())
}
