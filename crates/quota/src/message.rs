//! Between messages on the wire and what they stand for.

use tidegate_core::CostRate;
use tidegate_core::fleet::{Generation, Limits, TaskId};
use tidegate_wire::proto::tidegate::quota::v1 as wire;

/// Four rates, lowest criticality first; none at all are four zeros. Nothing for any other number.
pub(crate) fn rates(rates: &[u64]) -> Option<[CostRate; 4]> {
    match *rates {
        [] => Some([CostRate::ZERO; 4]),
        [a, b, c, d] => Some([a, b, c, d].map(CostRate::from_nanos_per_sec)),
        _ => None,
    }
}

/// The same as limits, lowered to be nested.
pub(crate) fn limits(rates: &[u64]) -> Option<Limits> {
    self::rates(rates).map(Limits::clamped)
}

pub(crate) fn write_rates(rates: [CostRate; 4]) -> Vec<u64> {
    if rates == [CostRate::ZERO; 4] {
        return Vec::new();
    }
    rates.map(CostRate::as_nanos_per_sec).to_vec()
}

pub(crate) fn write_limits(limits: Limits) -> Vec<u64> {
    write_rates(limits.as_array())
}

pub(crate) fn task_id(id: wire::TaskId) -> TaskId {
    TaskId::from_parts(id.epoch, id.number)
}

pub(crate) const fn write_task_id(id: TaskId) -> wire::TaskId {
    wire::TaskId { epoch: id.epoch(), number: id.number() }
}

pub(crate) const fn generation(generation: wire::Generation) -> Generation {
    Generation { epoch: generation.epoch, number: generation.number }
}

pub(crate) const fn write_generation(generation: Generation) -> wire::Generation {
    wire::Generation { epoch: generation.epoch, number: generation.number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_four_or_none() {
        assert_eq!(rates(&[]), Some([CostRate::ZERO; 4]));
        let four = [1, 2, 3, u64::MAX].map(CostRate::from_nanos_per_sec);
        assert_eq!(rates(&[1, 2, 3, u64::MAX]), Some(four));
        assert_eq!(write_rates(four), [1, 2, 3, u64::MAX]);
        for wrong in [&[1][..], &[1, 2, 3], &[1, 2, 3, 4, 5]] {
            assert_eq!((rates(wrong), limits(wrong)), (None, None));
        }
        assert_eq!(limits(&[9, 2, 3, 1]), Some(Limits::total(four[0])));
        assert_eq!(write_limits(Limits::ZERO), [0; 0]);
    }
}
