//! Whether this server leads, for everyone who answers.

use crate::election::fence::Fence;
use arc_swap::ArcSwap;
use tidegate::clock::Clock;
use tidegate_wire::proto::tidegate::quota::v1 as wire;
use tonic::Status;

/// What a server is.
#[derive(Debug)]
enum Place {
    Leads { epoch: u64, fence: Fence },
    Follows { leader: Option<String> },
}

/// Whether this server leads.
#[derive(Debug)]
pub(crate) struct Seat {
    place: ArcSwap<Place>,
    pub(crate) clock: Clock,
}

/// This server does not lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotLeader {
    /// Who does, by host and port.
    pub(crate) leader: Option<String>,
}

impl Seat {
    /// That of a server which follows nobody of whom it knows.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { place: ArcSwap::from_pointee(Place::Follows { leader: None }), clock }
    }

    pub(crate) fn lead(&self, epoch: u64, fence: Fence) {
        self.place.store(Place::Leads { epoch, fence }.into());
    }

    pub(crate) fn follow(&self, leader: Option<String>) {
        self.place.store(Place::Follows { leader }.into());
    }

    /// By which election it leads, if it does.
    pub(crate) fn check(&self) -> Result<u64, NotLeader> {
        match &**self.place.load() {
            Place::Leads { epoch, fence } if fence.is_open(self.clock.now()) => Ok(*epoch),
            Place::Leads { .. } => Err(NotLeader { leader: None }),
            Place::Follows { leader } => Err(NotLeader { leader: leader.clone() }),
        }
    }
}

impl NotLeader {
    /// For those who cannot be sent elsewhere.
    pub(crate) fn status(&self) -> Status {
        Status::unavailable(match &self.leader {
            Some(leader) => format!("this server does not lead: {leader} does"),
            None => "this server does not lead, and knows of nobody who does".to_owned(),
        })
    }

    /// For tasks.
    pub(crate) fn redirect(self) -> wire::ServerMessage {
        let redirect = Some(wire::Redirect { leader: self.leader.unwrap_or_default() });
        wire::ServerMessage { redirect, ..wire::ServerMessage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Timestamp;

    #[test]
    fn a_leader_whose_time_is_up_does_not_lead() {
        let (clock, hand) = Clock::manual();
        let seat = Seat::new(clock);
        assert_eq!(seat.check(), Err(NotLeader { leader: None }));
        seat.lead(7, Fence::until(Timestamp::from_secs(5)));
        assert_eq!(seat.check(), Ok(7));
        hand.set(Timestamp::from_secs(5));
        assert_eq!(seat.check(), Err(NotLeader { leader: None }));
        seat.follow(Some("b:1".to_owned()));
        let elsewhere = seat.check().unwrap_err();
        assert!(elsewhere.status().message().contains("b:1 does"));
        assert_eq!(elsewhere.redirect().redirect.unwrap().leader, "b:1");
    }
}
