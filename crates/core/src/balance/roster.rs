//! Who is in the set, in which standing, with how many requests under way.

use super::{BackendId, Join, Pick, PickReason, Standing};
use crate::units::Timestamp;

#[derive(Debug, Clone, Copy)]
struct Member {
    /// Where it stands in the list of its standing.
    place: usize,
    cold_since: Option<Timestamp>,
}

const ABSENT: Member = Member { place: 0, cold_since: None };

#[derive(Debug, Clone)]
pub(super) struct Roster {
    /// By number; those that left stay as absent, with what they still have under way. What
    /// requests ask for lies apart from the rest, close together: it is used with every request,
    /// and there may be thousands of rosters.
    standings: Vec<Standing>,
    active: Vec<u32>,
    members: Vec<Member>,
    serving: Vec<BackendId>,
    lame: Vec<BackendId>,
    lame_turn: usize,
    size_max: usize,
}

impl Roster {
    pub(super) fn new(size_max: usize) -> Self {
        Self {
            standings: Vec::new(),
            active: Vec::new(),
            members: Vec::new(),
            serving: Vec::new(),
            lame: Vec::new(),
            lame_turn: 0,
            size_max: size_max.min(BackendId::LIMIT as usize),
        }
    }

    /// Makes `id` serve. Whether it does now: not if its number is too large or the set is full.
    pub(super) fn join(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        if id.0 >= BackendId::LIMIT {
            return false;
        }
        let full = self.serving.len() + self.lame.len() >= self.size_max;
        let standing = self.standing(id);
        if standing == Standing::Absent && full {
            return false;
        }
        if self.members.len() <= id.index() {
            self.members.resize(id.index() + 1, ABSENT);
            self.standings.resize(id.index() + 1, Standing::Absent);
            self.active.resize(id.index() + 1, 0);
        }
        if standing != Standing::Serving {
            self.stand(id, Standing::Serving);
            self.members[id.index()].cold_since = None;
        }
        if join == Join::Cold {
            self.members[id.index()].cold_since = Some(now);
        }
        true
    }

    /// Makes `id` a lame duck; whether it is one now.
    pub(super) fn lame_duck(&mut self, id: BackendId) -> bool {
        if self.standing(id) == Standing::Serving {
            self.stand(id, Standing::LameDuck);
        }
        self.standing(id) == Standing::LameDuck
    }

    /// Takes `id` out; whether it was in.
    pub(super) fn leave(&mut self, id: BackendId) -> bool {
        let was_in = self.standing(id) != Standing::Absent;
        if was_in {
            self.stand(id, Standing::Absent);
        }
        was_in
    }

    /// Moves a member that exists from the list it is in to the one it should be in.
    fn stand(&mut self, id: BackendId, standing: Standing) {
        let (from, place) = (self.standings[id.index()], self.members[id.index()].place);
        if let Some(list) = self.list(from) {
            list.swap_remove(place);
            if let Some(&moved) = list.get(place) {
                self.members[moved.index()].place = place;
            }
        }
        if let Some(list) = self.list(standing) {
            list.push(id);
            self.members[id.index()].place = self.list(standing).map_or(0, |l| l.len() - 1);
        }
        self.standings[id.index()] = standing;
    }

    fn list(&mut self, standing: Standing) -> Option<&mut Vec<BackendId>> {
        match standing {
            Standing::Absent => None,
            Standing::Serving => Some(&mut self.serving),
            Standing::LameDuck => Some(&mut self.lame),
        }
    }

    pub(super) fn standing(&self, id: BackendId) -> Standing {
        self.standings.get(id.index()).copied().unwrap_or(Standing::Absent)
    }

    pub(super) fn serves(&self, id: BackendId) -> bool {
        self.standing(id) == Standing::Serving
    }

    pub(super) fn serving(&self) -> &[BackendId] {
        &self.serving
    }

    pub(super) fn lame(&self) -> &[BackendId] {
        &self.lame
    }

    /// Since when a backend that joined cold has been running.
    pub(super) fn cold_since(&self, id: BackendId) -> Option<Timestamp> {
        self.members.get(id.index()).and_then(|m| m.cold_since)
    }

    /// The backend has warmed up.
    pub(super) fn warm(&mut self, id: BackendId) {
        if let Some(m) = self.members.get_mut(id.index()) {
            m.cold_since = None;
        }
    }

    pub(super) fn active(&self, id: BackendId) -> u32 {
        self.active.get(id.index()).copied().unwrap_or(0)
    }

    /// Counts also for those that have left: a pick may overlap with a removal.
    pub(super) fn on_start(&mut self, id: BackendId) {
        if let Some(active) = self.active.get_mut(id.index()) {
            *active = active.saturating_add(1);
        }
    }

    pub(super) fn on_complete(&mut self, id: BackendId) {
        if let Some(active) = self.active.get_mut(id.index()) {
            *active = active.saturating_sub(1);
        }
    }

    /// For when nobody serves: the lame ducks in turn.
    pub(super) fn pick_lame(&mut self) -> Option<Pick> {
        self.lame_turn = if self.lame_turn + 1 < self.lame.len() { self.lame_turn + 1 } else { 0 };
        let backend = *self.lame.get(self.lame_turn)?;
        Some(Pick { backend, reason: PickReason::AllLameDuck })
    }
}
