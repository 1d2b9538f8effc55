//! Between messages on the wire and what they stand for.

use bytes::Bytes;
use prost::Message as _;
use tidegate_core::fleet::{Generation, Limits, TaskId, Usage};
use tidegate_core::{CostRate, CustomerId};
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

/// A report, of lines in the order of their customers.
pub(crate) fn write_usages(number: u64, lines: impl IntoIterator<Item = Usage>) -> wire::Usages {
    let mut usages = wire::Usages { number, ..wire::Usages::default() };
    let mut last = 0;
    for line in lines {
        if let Some(has) = line.has {
            // All four, also zeros: nothing would be nothing to say.
            let limits = has.as_array().map(CostRate::as_nanos_per_sec).into();
            usages.holds.push(wire::Holding { customer: line.customer.0, limits });
        }
        let mut levels = 0;
        for l in 0..4 {
            if line.used[l] > CostRate::ZERO {
                levels |= 1 << l;
                usages.rates.push(line.used[l].as_nanos_per_sec());
            }
        }
        for l in 0..4 {
            if line.demand[l] > line.used[l] {
                levels |= 0x10 << l;
                usages.rates.push((line.demand[l] - line.used[l]).as_nanos_per_sec());
            }
        }
        if levels != 0 {
            usages.customers.push(line.customer.0.saturating_sub(last));
            usages.levels.push(levels);
            last = line.customer.0;
        }
    }
    usages
}

/// What is wrong with a report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadUsages {
    #[error("`levels` has {found} bytes for {customers} customers: one for each")]
    Levels { found: usize, customers: usize },
    #[error("`rates` has {found} rates, and `levels` has {bits} bits: one for each")]
    Rates { found: usize, bits: usize },
    #[error("`customers` adds up to more than 32 bits: each is the difference to the one before")]
    Customers,
    #[error("`limits` of customer {customer} has {found} rates: four, lowest criticality first")]
    Holds { customer: u32, found: usize },
}

/// Whether [`lines`] finds what it needs.
pub(crate) fn check_usages(usages: &wire::Usages) -> Result<(), BadUsages> {
    let (found, customers) = (usages.levels.len(), usages.customers.len());
    if found != customers {
        return Err(BadUsages::Levels { found, customers });
    }
    let bits = usages.levels.iter().map(|levels| levels.count_ones() as usize).sum();
    let found = usages.rates.len();
    if found != bits {
        return Err(BadUsages::Rates { found, bits });
    }
    if usages.customers.iter().map(|&step| u64::from(step)).sum::<u64>() > u64::from(u32::MAX) {
        return Err(BadUsages::Customers);
    }
    for wire::Holding { customer, limits } in &usages.holds {
        if limits.len() != 4 {
            return Err(BadUsages::Holds { customer: *customer, found: limits.len() });
        }
    }
    Ok(())
}

/// The lines of a report.
pub(crate) fn lines(usages: &wire::Usages) -> impl Iterator<Item = Usage> + '_ {
    let mut rates = usages.rates.iter().copied();
    let mut customer = 0_u32;
    let nothing = [CostRate::ZERO; 4];
    let lines = usages.customers.iter().zip(&usages.levels).map(move |(step, levels)| {
        customer = customer.wrapping_add(*step);
        let mut rate = |bit: u8| match levels & bit {
            0 => CostRate::ZERO,
            _ => CostRate::from_nanos_per_sec(rates.next().unwrap_or(0)),
        };
        let used = [rate(1), rate(2), rate(4), rate(8)];
        let refused = [rate(16), rate(32), rate(64), rate(128)];
        let demand = core::array::from_fn(|l| used[l] + refused[l]);
        Usage { customer: CustomerId(customer), used, demand, has: None }
    });
    let holds = usages.holds.iter().map(move |holding| {
        let has = Some(limits(&holding.limits).unwrap_or(Limits::ZERO));
        Usage { customer: CustomerId(holding.customer), used: nothing, demand: nothing, has }
    });
    lines.chain(holds)
}

/// Adds a grant to others that are told together.
pub(crate) fn write_grant(grants: &mut wire::Grants, customer: CustomerId, limits: Limits) {
    let mut below = 0;
    grants.customers.push(customer.0);
    grants.limits.extend(limits.as_array().map(|rate| {
        let rate = rate.as_nanos_per_sec();
        rate - core::mem::replace(&mut below, rate)
    }));
}

/// The grants of a message; nothing if they are not four for each customer.
pub(crate) fn grants(grants: &wire::Grants) -> Option<impl Iterator<Item = (u32, Limits)> + '_> {
    let (fours, rest) = grants.limits.as_chunks::<4>();
    let limits = fours.iter().map(|steps| {
        let mut rate = 0_u64;
        Limits::clamped(steps.map(|step| {
            rate = rate.saturating_add(step);
            CostRate::from_nanos_per_sec(rate)
        }))
    });
    let whole = rest.is_empty() && fours.len() == grants.customers.len();
    whole.then(|| grants.customers.iter().copied().zip(limits))
}

/// Who is configured, as everybody is told.
pub(crate) fn write_directory(customers: Vec<wire::Customer>) -> Bytes {
    wire::Directory { customers }.encode_to_vec().into()
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
