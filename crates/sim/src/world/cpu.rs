//! A machine's CPU, shared among requests.
//!
//! `Shared` is what an operating system does with threads: all requests run at once, each at the
//! same rate, `speed x min(1, cores / n)`. It is simulated with one number: `attained`, the work
//! that a request which was there from the start would have got by now. A request that comes at
//! `attained = a` and needs `w` is done when `attained` reaches `a + w`, whatever comes and goes
//! meanwhile, so nothing has to be updated but the next finish.
//!
//! `Fifo` is what a runtime does whose handlers do not yield: as many requests as there are cores
//! run to the end, the others wait in the order in which they came.
//!
//! Chores (refusing requests, setting up connections) are done before anything else.

use crate::heap::Heap;
use core::time::Duration;
use std::collections::VecDeque;
use tidegate_core::Timestamp;

/// How requests share the cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// All at once, at the same rate.
    #[default]
    Shared,
    /// In the order in which they came, one per core.
    Fifo,
}

/// The CPU of one task. `J` names a job.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cpu<J> {
    last: Timestamp,
    /// Work that each running job has attained since the beginning.
    attained: f64,
    cores: f64,
    /// Work done per second of one core: 1 on the reference machine, less beside an antagonist.
    speed: f64,
    /// Seconds of one core at the reference speed.
    chores: f64,
    /// Core-seconds that were busy.
    busy: f64,
    /// Work done on jobs, in seconds of the reference machine.
    worked: f64,
    /// Jobs by what `attained` will be when they are done; then by their names.
    running: Heap<J>,
    /// Jobs that wait for a core. Only where they do: elsewhere there is nothing to look at.
    waiting: Option<Box<Waiting<J>>>,
}

/// Jobs and their work, in the order in which they came.
#[derive(Debug)]
struct Waiting<J>(VecDeque<(f64, J)>);

impl<J: Copy + Ord> Cpu<J> {
    pub(crate) fn new(sharing: Sharing, cores: f64, speed: f64) -> Self {
        Self {
            last: Timestamp::ZERO,
            attained: 0.0,
            cores,
            speed,
            chores: 0.0,
            busy: 0.0,
            worked: 0.0,
            running: Heap::new(),
            waiting: (sharing == Sharing::Fifo).then(|| Box::new(Waiting(VecDeque::new()))),
        }
    }

    /// Jobs running or ready to run.
    #[inline]
    pub(crate) fn active(&self) -> usize {
        self.running.len() + self.waiting.as_ref().map_or(0, |waiting| waiting.0.len())
    }

    /// The running job that will be done first.
    #[inline]
    pub(crate) fn next(&self) -> Option<J> {
        self.running.first()
    }

    /// Reads what every event reads first.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.attained.to_bits() ^ self.active() as u64
    }

    /// Core-seconds that were busy until `now`.
    pub(crate) fn busy(&mut self, now: Timestamp) -> f64 {
        self.advance(now);
        self.busy
    }

    /// Work done on jobs when anything last happened, in seconds of the reference machine.
    pub(crate) fn worked(&self) -> f64 {
        self.worked
    }

    /// Work per second of a core.
    pub(crate) const fn speed(&self) -> f64 {
        self.speed
    }

    pub(crate) fn set_speed(&mut self, speed: f64, now: Timestamp) {
        self.advance(now);
        self.speed = speed;
    }

    /// Everything that was running or waiting is gone.
    pub(crate) fn clear(&mut self, now: Timestamp) -> impl Iterator<Item = J> {
        self.advance(now);
        self.chores = 0.0;
        let mut running = core::mem::replace(&mut self.running, Heap::new());
        let waiting = self.waiting.as_mut().map(|waiting| core::mem::take(&mut waiting.0));
        let waiting = waiting.unwrap_or_default();
        core::iter::from_fn(move || running.pop()).chain(waiting.into_iter().map(|w| w.1))
    }

    pub(crate) fn chore(&mut self, work: Duration, now: Timestamp) {
        self.advance(now);
        self.chores += work.as_secs_f64();
    }

    pub(crate) fn start(&mut self, job: J, work: Duration, now: Timestamp) {
        self.advance(now);
        let work = work.as_secs_f64();
        match &mut self.waiting {
            Some(waiting) if self.running.len() as f64 >= self.cores => {
                waiting.0.push_back((work, job));
            }
            _ => self.run(work, job),
        }
    }

    fn run(&mut self, work: f64, job: J) {
        self.running.push(self.attained + work, job);
    }

    /// Each running job's rate.
    fn rate(&self) -> f64 {
        let n = self.running.len() as f64;
        if n > self.cores { self.speed * self.cores / n } else { self.speed }
    }

    /// When the next job will be done if nothing else happens.
    pub(crate) fn next_finish(&self) -> Option<Timestamp> {
        let done_at = self.running.least()?;
        let chores = self.chores / (self.cores * self.speed);
        let wait = (done_at - self.attained).max(0.0) / self.rate() + chores;
        // Rounded up, so that the job is done when the moment comes.
        let nanos = wait * 1e9;
        let whole = nanos as u64;
        let whole = whole.saturating_add(u64::from((whole as f64) < nanos));
        Some(if nanos.is_finite() {
            Timestamp::from_nanos(self.last.as_nanos().saturating_add(whole))
        } else {
            Timestamp::MAX
        })
    }

    /// A job that is done by `now`, if there is one.
    pub(crate) fn finish(&mut self, now: Timestamp) -> Option<J> {
        self.advance(now);
        let done_at = self.running.least()?;
        // A nanosecond of work is below what time can tell apart.
        if done_at > self.attained + 1e-9 {
            return None;
        }
        let job = self.running.pop()?;
        if let Some((work, next)) = self.waiting.as_mut().and_then(|waiting| waiting.0.pop_front())
        {
            self.run(work, next);
        }
        Some(job)
    }

    #[inline]
    fn advance(&mut self, now: Timestamp) {
        if now <= self.last {
            return;
        }
        let mut elapsed = (now.as_nanos() - self.last.as_nanos()) as f64 / 1e9;
        self.last = now;
        if self.chores > 0.0 {
            let all_cores = self.cores * self.speed;
            let spent = (self.chores / all_cores).min(elapsed);
            self.chores = (self.chores - spent * all_cores).max(0.0);
            self.busy += spent * self.cores;
            elapsed -= spent;
        }
        self.attained += elapsed * self.rate();
        let busy = elapsed * self.cores.min(self.running.len() as f64);
        self.busy += busy;
        self.worked += busy * self.speed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn run_all(cpu: &mut Cpu<u32>) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        while let Some(at) = cpu.next_finish() {
            while let Some(job) = cpu.finish(at) {
                out.push((job, (at.as_nanos() + 500_000) / 1_000_000));
            }
        }
        out
    }

    #[test]
    fn shared_jobs_slow_each_other_down() {
        // 10 ms alone; then two share one core until the first, which needs 20 more, is done.
        let mut cpu = Cpu::new(Sharing::Shared, 1.0, 1.0);
        cpu.start(1, Duration::from_millis(30), ms(0));
        cpu.start(2, Duration::from_millis(50), ms(10));
        assert_eq!(run_all(&mut cpu), [(1, 50), (2, 80)]);
        assert!((cpu.busy(ms(100)) - 0.08).abs() < 1e-9);
    }

    #[test]
    fn fifo_jobs_wait_for_a_core() {
        let mut cpu = Cpu::new(Sharing::Fifo, 2.0, 1.0);
        for job in 0..4 {
            cpu.start(job, Duration::from_millis(10 + 5 * u64::from(job)), ms(0));
        }
        assert_eq!(run_all(&mut cpu), [(0, 10), (1, 15), (2, 30), (3, 40)]);
    }

    #[test]
    fn speed_and_chores_count() {
        let mut cpu = Cpu::new(Sharing::Shared, 1.0, 0.5);
        cpu.start(1, Duration::from_millis(10), ms(0));
        cpu.chore(Duration::from_millis(5), ms(0));
        // 5 ms of chores take 10; then half of the work at half speed, the rest at full.
        cpu.set_speed(1.0, ms(20));
        assert_eq!(run_all(&mut cpu), [(1, 25)]);
        assert_eq!(cpu.active(), 0);
    }

    #[test]
    fn a_machine_that_stands_still_finishes_nothing() {
        let mut cpu = Cpu::new(Sharing::Shared, 1.0, 0.0);
        cpu.start(1, Duration::from_millis(10), ms(0));
        assert_eq!(cpu.next_finish(), Some(Timestamp::MAX));
        assert_eq!(cpu.finish(ms(1_000_000)), None);
        assert_eq!(cpu.clear(ms(1_000_000)).collect::<Vec<_>>(), [1]);
    }
}
