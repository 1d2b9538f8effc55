//! Who is served first: what clients want by criticality, and the level of each.
//!
//! Each criticality is served from what the ones above leave, by the resource's algorithm. So if
//! there is too little, the least important wants go first, whichever client they belong to; within
//! a criticality everyone has its fair part. Clients that all send the same priority, as stock
//! clients do, share as if there were none.
//!
//! **When it is wrong.** Whoever claims a higher priority is served first, down to nothing for the
//! rest. What a client may claim is for the shell to check.

use super::config::Kind;
use super::resource::Band;
use crate::criticality::Criticality;
use crate::share::{Claim, amount, water_level};

const LEVELS: usize = Criticality::COUNT;

/// What one client wants at one criticality.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Part {
    wants: f64,
    /// At least one if it has a band here, or it would have no share to grow from.
    subclients: u64,
}

/// What one client wants, lowest criticality first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Demand([Part; LEVELS]);

impl Demand {
    pub(super) fn new(bands: &[Band]) -> Self {
        let mut parts = [Part::default(); LEVELS];
        for band in bands {
            let part = &mut parts[Band::criticality(band.priority).index()];
            part.wants = amount(part.wants + band.wants);
            part.subclients = part.subclients.saturating_add(band.clients).max(1);
        }
        Self(parts)
    }

    /// For how many it stands.
    pub(super) fn subclients(&self) -> u64 {
        self.0.iter().fold(0, |sum, part| sum.saturating_add(part.subclients))
    }

    pub(super) fn wants(&self) -> f64 {
        amount(self.0.iter().map(|part| part.wants).sum())
    }
}

/// How one criticality is shared out.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    /// All that is wanted, and whether it can be had.
    wants: f64,
    fits: bool,
    /// What there is, over all subclients.
    equal: f64,
    /// What those below their equal share leave, over what those above it lack.
    proportion: f64,
    /// The level of weighted max-min.
    water: f64,
}

/// How everything is shared out; holds until someone wants something else.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    kind: Kind,
    levels: [Level; LEVELS],
}

impl Shares {
    /// Shares `capacity` out among all `demands`.
    pub(super) fn new<'a>(
        kind: Kind,
        capacity: f64,
        demands: &(impl Iterator<Item = &'a Demand> + Clone),
    ) -> Self {
        let mut levels = [Level::default(); LEVELS];
        let mut left = capacity;
        for (l, level) in levels.iter_mut().enumerate().rev() {
            *level = Level::new(kind, left, demands.clone().map(|demand| demand.0[l]));
            left = (left - level.wants).max(0.0);
        }
        Self { kind, levels }
    }

    /// What the client with this demand should get.
    pub(super) fn of(&self, demand: &Demand) -> f64 {
        self.levels.iter().zip(&demand.0).map(|(level, part)| level.of(self.kind, part)).sum()
    }
}

impl Level {
    fn new(kind: Kind, capacity: f64, parts: impl Iterator<Item = Part> + Clone) -> Self {
        let subclients = parts.clone().fold(0_u64, |sum, part| sum.saturating_add(part.subclients));
        let equal = capacity / subclients.max(1) as f64;
        let (mut wants, mut left, mut lacked) = (0.0, 0.0, 0.0);
        for part in parts.clone() {
            let over = part.wants - equal * part.subclients as f64;
            if over > 0.0 {
                lacked += over;
            } else {
                left -= over;
            }
            wants += part.wants;
        }
        let claims = parts.map(|part| Claim::new(part.wants, part.subclients as f64));
        Self {
            wants,
            fits: wants <= capacity,
            equal,
            proportion: if lacked > 0.0 { left / lacked } else { 0.0 },
            water: match kind {
                Kind::FairShare => water_level(capacity, claims),
                Kind::NoAlgorithm | Kind::Static | Kind::ProportionalShare => f64::INFINITY,
            },
        }
    }

    fn of(&self, kind: Kind, part: &Part) -> f64 {
        let equal = self.equal * part.subclients as f64;
        match kind {
            Kind::FairShare => Claim::new(part.wants, part.subclients as f64).at(self.water),
            Kind::ProportionalShare if !self.fits && part.wants > equal => {
                (equal + (part.wants - equal) * self.proportion).min(part.wants)
            }
            Kind::NoAlgorithm | Kind::Static | Kind::ProportionalShare => part.wants,
        }
    }
}
