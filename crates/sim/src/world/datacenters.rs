//! Which datacenter a request goes to, and what becomes of a datacenter.
//!
//! A service with spillover has one planner (`tidegate_core::spillover`). Every second or so it
//! hears what each group of clients asks for (requests counted at the clients, times what one has
//! lately cost the backends) and what each datacenter can do, and every group picks by the new
//! table. What has no place anywhere is refused at the client.

use super::{Event, World};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::CostRate;
use tidegate_core::spillover::{Datacenter, DatacenterId, Demand, LocationId, PickTable};
use tidegate_core::spillover::{Resources, Spillover};

/// How much of the newest count goes into a group's demand: half, so that the luck of one second
/// moves little, and a surge is known after two.
const NEWEST: f64 = 0.5;

/// What a group knows of datacenters.
#[derive(Debug)]
pub(super) struct Spread {
    /// The datacenters that have tasks of its service: each of its tasks has a stack for each.
    places: Vec<usize>,
    table: PickTable,
    asked: u64,
    /// Requests a second.
    rate: f64,
}

#[derive(Debug)]
pub(super) struct Planner {
    spillover: Spillover,
    /// CPU time that the backends spent on requests since the last plan, and on how many.
    pub(super) work: Duration,
    pub(super) jobs: u64,
    /// Seconds of CPU time that a request costs.
    cost: f64,
    /// Which datacenters have tasks.
    has: Vec<bool>,
    /// By datacenter: what was planned to be there, and how busy it had been by then.
    planned: Vec<CostRate>,
    busy: Vec<f64>,
}

fn cpus(cpus: f64) -> CostRate {
    CostRate::from_cpus(cpus.max(0.0)).unwrap_or_default()
}

impl World {
    /// The datacenters that have tasks of a service with spillover.
    pub(super) fn places(&self, service: usize) -> Option<Vec<usize>> {
        let of = &self.spec.services[service];
        of.spillover?;
        let mut places: Vec<usize> = of.tasks.iter().map(|task| task.datacenter).collect();
        places.sort_unstable();
        places.dedup();
        Some(places)
    }

    pub(super) fn make_planners(&mut self) {
        for service in 0..self.spec.services.len() {
            let of = &self.spec.services[service];
            let places = self.spec.distance.len().max(1);
            let planner = of.spillover.map(|spec| Planner {
                spillover: Spillover::new(spec.config),
                work: Duration::ZERO,
                jobs: 0,
                cost: of.work.mean(),
                has: (0..places).map(|p| of.tasks.iter().any(|t| t.datacenter == p)).collect(),
                planned: vec![CostRate::ZERO; places],
                busy: vec![0.0; places],
            });
            self.planners.push(planner);
        }
        for group in 0..self.groups.len() {
            let client = &self.spec.clients[group];
            if let Some(places) = self.places(client.service) {
                let table = PickTable::default();
                let rate = client.rate;
                self.groups[group].spread = Some(Spread { places, table, asked: 0, rate });
                let places = self.spec.distance.len();
                self.record.sent_to[group] = vec![Vec::new(); places];
            }
        }
        for service in 0..self.planners.len() {
            if self.planners[service].is_some() {
                self.plan(service as u32);
            }
        }
    }

    /// Plans anew where a service's traffic goes.
    pub(super) fn plan(&mut self, service: u32) {
        let index = service as usize;
        let Some(spec) = self.spec.services[index].spillover else { return };
        self.queue.push(self.now + spec.every, Event::Plan { service });
        let Some(planner) = &mut self.planners[index] else { return };
        if planner.jobs > 0 {
            planner.cost = planner.work.as_secs_f64() / planner.jobs as f64;
        }
        (planner.work, planner.jobs) = (Duration::ZERO, 0);

        let seconds = spec.every.as_secs_f64();
        let started = self.now.as_nanos() > 0;
        // Groups in one datacenter are one location: who is placed first must not depend on names.
        let mut locations: BTreeMap<usize, (f64, Vec<usize>)> = BTreeMap::new();
        for (number, group) in self.groups.iter_mut().enumerate() {
            let client = &self.spec.clients[number];
            let Some(spread) = group.spread.as_mut().filter(|_| client.service == index) else {
                continue;
            };
            let asked = core::mem::take(&mut spread.asked) as f64 / seconds;
            if started {
                spread.rate += NEWEST * (asked - spread.rate);
            }
            let (rate, groups) = locations.entry(client.datacenter).or_default();
            *rate += spread.rate;
            groups.push(number);
        }
        let places: Vec<usize> = (0..planner.planned.len()).filter(|&p| planner.has[p]).collect();
        let demands: Vec<Demand> = locations
            .iter()
            .map(|(&from, (rate, _))| {
                let distance = |to: usize| {
                    let row = self.spec.distance.get(from);
                    row.and_then(|row| row.get(to)).copied().unwrap_or_default() * 2
                };
                let reach = places.iter().map(|&to| (DatacenterId(to as u32), distance(to)));
                let needs = Resources::cpu(cpus(rate * planner.cost));
                Demand::new(LocationId(from as u32), needs, reach.collect())
            })
            .collect();

        let mut capacity = vec![0.0; planner.planned.len()];
        let mut busy = vec![0.0; planner.planned.len()];
        for (backend, factors) in self.backends.iter_mut().zip(&self.factors) {
            if backend.service == index
                && let Some(sum) = capacity.get_mut(backend.spec.datacenter)
            {
                let can = backend.spec.cores * backend.spec.speed * factors.place;
                *sum += if backend.down { 0.0 } else { can };
                busy[backend.spec.datacenter] += backend.cpu.busy(self.now) * backend.spec.speed;
            }
        }
        let datacenters: Vec<Datacenter> = capacity
            .iter()
            .enumerate()
            .map(|(place, &can)| {
                let id = DatacenterId(place as u32);
                let datacenter = Datacenter::new(id, Resources::cpu(cpus(can * spec.fill)));
                if spec.measured_use && started {
                    let used = cpus((busy[place] - planner.busy[place]) / seconds);
                    let planned = Resources::cpu(planner.planned[place]);
                    datacenter.with_measured_use(Resources::cpu(used), planned)
                } else {
                    datacenter
                }
            })
            .collect();
        planner.busy = busy;
        planner.planned.fill(CostRate::ZERO);
        let plan = planner.spillover.plan(&demands, &datacenters, self.now);
        for (assignment, (_, groups)) in plan.iter().zip(locations.into_values()) {
            for (place, rate) in &assignment.placed {
                let sum = &mut planner.planned[place.0 as usize];
                *sum = *sum + *rate;
            }
            for number in groups {
                if let Some(spread) = &mut self.groups[number].spread {
                    spread.table = assignment.table();
                }
            }
        }
    }

    /// The stack by which a task of a group sends its next request; none if no datacenter has room.
    pub(super) fn place(&mut self, group: u32, task: u32, is_new: bool) -> Option<u32> {
        let state = &mut self.groups[group as usize];
        let Some(spread) = &mut state.spread else { return Some(state.first_stack + task) };
        spread.asked += u64::from(is_new);
        let place = spread.table.pick(&mut self.decisions)?;
        let column = &mut self.record.sent_to[group as usize][place.0 as usize];
        let second = (self.now.as_nanos() / 1_000_000_000) as usize;
        if column.len() <= second {
            column.resize(second + 1, 0);
        }
        column[second] += 1;
        let index = spread.places.iter().position(|&p| p == place.0 as usize)?;
        Some(state.first_stack + task * spread.places.len() as u32 + index as u32)
    }

    /// The stack for another attempt of a group whose last one went by `stack`.
    pub(super) fn place_again(&mut self, group: u32, stack: u32) -> u32 {
        let state = &self.groups[group as usize];
        let Some(spread) = &state.spread else { return stack };
        let task = (stack - state.first_stack) / spread.places.len() as u32;
        self.place(group, task, false).unwrap_or(stack)
    }

    pub(super) fn set_datacenter(&mut self, place: usize, lost: bool) {
        self.each_in(place, |world, number| world.set_down(number, lost));
    }

    pub(super) fn set_datacenter_speed(&mut self, place: usize, factor: f64) {
        self.each_in(place, |world, number| {
            world.factors[number as usize].place = factor;
            world.set_speed(number);
        });
    }

    fn each_in(&mut self, place: usize, mut action: impl FnMut(&mut Self, u32)) {
        for number in 0..self.backends.len() {
            if self.backends[number].spec.datacenter == place {
                action(self, number as u32);
            }
        }
    }
}
