//! Chance as an argument.
//!
//! A decision that rolls dice of its own cannot be replayed. So whatever needs chance takes an
//! [`Rng`], and a run is known by its seed. [`SeededRng`] is `SplitMix64`: eight bytes of state, a
//! nanosecond a draw, good enough for load decisions, and not for secrets.

/// A source of random bits.
pub trait Rng {
    /// The next 64 bits.
    fn next_u64(&mut self) -> u64;

    /// A whole number below `bound`, each as likely as the others; 0 if `bound` is 0.
    ///
    /// Multiplying instead of dividing leaves a bias below `bound / 2^64`, which no load decision
    /// can feel.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to, but not including, 1.
    fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl<R: Rng + ?Sized> Rng for &mut R {
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

/// A repeatable source: the same seed gives the same draws on every machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// The source that `seed` names.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A source of its own for a part of a run, so that parts do not disturb each other's draws.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

impl Rng for SeededRng {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }
}

/// Scrambles 64 bits so that close inputs give unrelated outputs (the finaliser of `SplitMix64`).
pub const fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Puts `items` into an order that only `rng` decides, each order as likely as the others.
pub fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_match_the_published_ones_of_splitmix64() {
        let mut rng = SeededRng::new(1_234_567);
        let draws: [u64; 5] = core::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            draws,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn bounds_hold_and_every_value_comes() {
        let mut rng = SeededRng::new(7);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[rng.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!(seen.iter().all(|&n| (850..1_150).contains(&n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        shuffle(&mut items, &mut SeededRng::new(1));
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
