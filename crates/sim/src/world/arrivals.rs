//! Who asks next, and when.
//!
//! Asks are drawn from dice of their own. Where one group asks alone and nobody else throws these
//! dice, some asks are drawn before they are due, so that the world can read ahead what they need.
//! The draws are the same in the same order; whoever wants the dice for anything else gets them as
//! if nothing had been drawn.

use super::choose;
use super::spec::{Arrivals, ClientSpec};
use crate::dice;
use core::time::Duration;
use std::collections::VecDeque;
use tidegate_core::Criticality;
use tidegate_core::rng::{Rng, SeededRng};

/// Asks that are drawn ahead at most: more than a slot of a large world has.
const AHEAD_MAX: usize = 64;

/// A group asks.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    /// How long it is until the next.
    pub(super) pause: Duration,
    /// By which of its tasks.
    pub(super) task: u32,
    pub(super) what: Wish,
    /// The dice before they were thrown for it.
    before: SeededRng,
}

/// What a request is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) criticality: Criticality,
    pub(super) customer: usize,
}

impl Wish {
    pub(super) fn draw(client: &ClientSpec, dice: &mut SeededRng) -> Self {
        let criticality = Criticality::ALL[choose(&client.mix, dice)];
        Self { criticality, customer: choose(&client.customers, dice) }
    }
}

/// The dice, and what has been drawn from them ahead.
#[derive(Debug)]
pub(super) struct Asking {
    dice: SeededRng,
    ahead: VecDeque<Ask>,
}

impl Asking {
    pub(super) const fn new(dice: SeededRng) -> Self {
        Self { dice, ahead: VecDeque::new() }
    }

    /// The dice, for whatever it is.
    pub(super) fn dice(&mut self) -> &mut SeededRng {
        if let Some(next) = self.ahead.front() {
            self.dice = next.before.clone();
            self.ahead.clear();
        }
        &mut self.dice
    }

    /// The next ask of a group.
    #[inline]
    pub(super) fn next(&mut self, client: &ClientSpec, rate: f64) -> Ask {
        self.ahead.pop_front().unwrap_or_else(|| self.draw(client, rate))
    }

    /// Draws asks ahead, from one that comes so long before the end of what is looked at. Only
    /// where one group asks alone, one request at a time.
    pub(super) fn look(&mut self, client: &ClientSpec, rate: f64, mut left: Duration) {
        for place in 0..AHEAD_MAX {
            if self.ahead.len() <= place {
                let ask = self.draw(client, rate);
                self.ahead.push_back(ask);
            }
            match left.checked_sub(self.ahead[place].pause) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    }

    /// What has been drawn ahead.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &Ask> {
        self.ahead.iter()
    }

    fn draw(&mut self, client: &ClientSpec, rate: f64) -> Ask {
        let before = self.dice.clone();
        let pause = pause(client, rate, &mut self.dice);
        let task = self.dice.below(client.tasks.into()) as u32;
        let what = Wish::draw(client, &mut self.dice);
        Ask { pause, task, what, before }
    }
}

/// How long it is from one ask of a group to the next.
pub(super) fn pause(client: &ClientSpec, rate: f64, dice: &mut SeededRng) -> Duration {
    let mean = f64::from(client.burst.max(1)) / rate;
    match client.arrivals {
        Arrivals::Poisson => dice::exponential(mean, dice),
        Arrivals::Even => dice::seconds(mean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that looks ahead beside one that does not: the same asks, and the same dice for others.
    #[test]
    fn looking_ahead_changes_nothing() {
        let client = ClientSpec {
            tasks: 100,
            mix: [0.1, 0.2, 0.3, 0.4],
            customers: vec![1.0, 2.0],
            ..ClientSpec::default()
        };
        let [mut looks, mut waits] = [(); 2].map(|()| Asking::new(SeededRng::new(3)));
        let mut most = 0;
        for round in 0_u64..1_000 {
            looks.look(&client, 1_000.0, Duration::from_millis(round % 7));
            most = most.max(looks.ahead().count());
            let [a, b] = [&mut looks, &mut waits].map(|asking| asking.next(&client, 1_000.0));
            assert_eq!((a.pause, a.task), (b.pause, b.task), "round {round}");
            assert_eq!(a.what.criticality, b.what.criticality, "round {round}");
            assert_eq!(a.what.customer, b.what.customer, "round {round}");
            if round % 10 == 0 {
                assert_eq!(looks.dice().next_u64(), waits.dice().next_u64(), "round {round}");
            }
        }
        assert!((8..=AHEAD_MAX).contains(&most), "{most}");
    }
}
