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

/// How a backend stands in the lowest two bits, requests under way in the others.
#[derive(Debug, Clone, Copy)]
struct State(u32);

impl State {
    const ABSENT: Self = Self(Standing::Absent as u32);
    /// One request under way.
    const ONE: u32 = 1 << 2;

    #[inline]
    const fn standing(self) -> Standing {
        match self.0 % Self::ONE {
            SERVING => Standing::Serving,
            LAME_DUCK => Standing::LameDuck,
            _ => Standing::Absent,
        }
    }

    const fn stand(&mut self, standing: Standing) {
        self.0 = self.active() * Self::ONE + standing as u32;
    }

    #[inline]
    const fn active(self) -> u32 {
        self.0 / Self::ONE
    }
}

const SERVING: u32 = Standing::Serving as u32;
const LAME_DUCK: u32 = Standing::LameDuck as u32;

#[derive(Debug, Clone)]
#[repr(C)] // What requests ask for comes first.
pub(super) struct Roster {
    /// By number; those that left stay as absent, with what they still have under way. What
    /// requests ask for lies apart from the rest, close together: it is used with every request,
    /// and there may be thousands of rosters.
    states: Vec<State>,
    members: Vec<Member>,
    serving: Vec<BackendId>,
    lame: Vec<BackendId>,
    lame_turn: usize,
    size_max: usize,
}

impl Roster {
    pub(super) fn new(size_max: usize) -> Self {
        Self {
            states: Vec::new(),
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
            self.states.resize(id.index() + 1, State::ABSENT);
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
        let (from, place) = (self.standing(id), self.members[id.index()].place);
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
        self.states[id.index()].stand(standing);
    }

    fn list(&mut self, standing: Standing) -> Option<&mut Vec<BackendId>> {
        match standing {
            Standing::Absent => None,
            Standing::Serving => Some(&mut self.serving),
            Standing::LameDuck => Some(&mut self.lame),
        }
    }

    #[inline]
    pub(super) fn standing(&self, id: BackendId) -> Standing {
        self.states.get(id.index()).map_or(Standing::Absent, |state| state.standing())
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

    #[inline]
    pub(super) fn active(&self, id: BackendId) -> u32 {
        self.states.get(id.index()).map_or(0, |state| state.active())
    }

    /// Counts also for those that have left: a pick may overlap with a removal.
    #[inline]
    pub(super) fn on_start(&mut self, id: BackendId) {
        if let Some(state) = self.states.get_mut(id.index()) {
            state.0 = state.0.checked_add(State::ONE).unwrap_or(state.0);
        }
    }

    #[inline]
    pub(super) fn on_complete(&mut self, id: BackendId) {
        if let Some(state) = self.states.get_mut(id.index()) {
            state.0 = state.0.checked_sub(State::ONE).unwrap_or(state.0);
        }
    }

    /// For when nobody serves: the lame ducks in turn.
    pub(super) fn pick_lame(&mut self) -> Option<Pick> {
        self.lame_turn = if self.lame_turn + 1 < self.lame.len() { self.lame_turn + 1 } else { 0 };
        let backend = *self.lame.get(self.lame_turn)?;
        Some(Pick { backend, reason: PickReason::AllLameDuck })
    }
}
