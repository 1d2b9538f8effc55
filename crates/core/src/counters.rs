//! Counting without contention.
//!
//! One atomic add costs six nanoseconds alone and twenty-six when two threads want the same cache
//! line; a gate that counts five things per request would spend more on counting than on deciding.
//! Here every thread writes cells that are its own: a plain load and a plain store of a value that
//! nobody else writes, about a nanosecond. Whoever wants to know adds up all threads' cells.
//!
//! Cells only ever grow (and wrap), so a reader keeps the last total and works with differences.
//! A sum taken while others write is not of one instant: each cell is right for some moment during
//! the reading. Differences between related cells (admitted less completed) can therefore be off
//! by what happened meanwhile, and are taken with saturation.
//!
//! When a [`Writer`] goes away its counts are kept. Making and dropping writers takes a lock; that
//! is once per thread, not once per request.

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use std::sync::Arc;

/// Cells per cache line.
pub(crate) const LINE: usize = 8;

/// A cache line of cells, alone on its line so that neighbours do not slow each other down.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [AtomicU64; LINE]);

impl Line {
    fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    fn first(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Adds to a cell that only the caller writes. A line has eight cells; the number of the cell
    /// is taken modulo eight.
    #[inline]
    pub(crate) fn add(&self, cell: usize, amount: u64) {
        let cell = &self.0[cell % LINE];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

/// Cells that many threads count into and one reads.
#[derive(Debug)]
pub struct Counters {
    cells: usize,
    registry: Mutex<Registry>,
}

#[derive(Debug)]
struct Registry {
    live: Vec<Arc<[Line]>>,
    /// What writers that are gone have counted; nothing as long as none is gone.
    retired: Vec<u64>,
}

impl Counters {
    /// `cells` counters, all zero.
    pub fn new(cells: usize) -> Arc<Self> {
        let registry = Registry { live: Vec::new(), retired: Vec::new() };
        Arc::new(Self { cells, registry: Mutex::new(registry) })
    }

    /// Cells of its own for one thread.
    pub fn writer(self: &Arc<Self>) -> Writer {
        let lines: Arc<[Line]> = (0..self.cells.div_ceil(LINE)).map(|_| Line::new()).collect();
        lock(&self.registry).live.push(Arc::clone(&lines));
        Writer { counters: Arc::clone(self), lines }
    }

    /// As [`Counters::writer`], for a gate whose number of lines is known when it is built.
    pub(crate) fn lines<const N: usize>(self: &Arc<Self>) -> Lines<N> {
        let lines: Arc<[Line; N]> = Arc::new(core::array::from_fn(|_| Line::new()));
        lock(&self.registry).live.push(Arc::clone(&lines) as _);
        Lines { counters: Arc::clone(self), lines }
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.cells
    }

    /// Whether there are no cells at all.
    pub fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// The sum of each cell over all threads, written into `totals` as far as it reaches.
    pub fn read(&self, totals: &mut [u64]) {
        let registry = lock(&self.registry);
        let len = totals.len().min(self.cells);
        let totals = &mut totals[..len];
        match registry.retired.get(..len) {
            Some(retired) => totals.copy_from_slice(retired),
            None => totals.fill(0),
        }
        // Line by line, as they lie in memory.
        for lines in &registry.live {
            for (totals, line) in totals.chunks_mut(LINE).zip(lines.iter()) {
                for (total, cell) in totals.iter_mut().zip(&line.0) {
                    *total = total.wrapping_add(cell.load(Ordering::Relaxed));
                }
            }
        }
    }

    /// The sum of each cell over all threads.
    pub fn totals(&self) -> Vec<u64> {
        let mut totals = vec![0; self.cells];
        self.read(&mut totals);
        totals
    }

    /// A writer is gone, what it has counted is not.
    fn retire(&self, gone: &[Line]) {
        let mut registry = lock(&self.registry);
        registry.retired.resize(self.cells, 0);
        for (retired, line) in registry.retired.chunks_mut(LINE).zip(gone) {
            for (retired, cell) in retired.iter_mut().zip(&line.0) {
                *retired = retired.wrapping_add(cell.load(Ordering::Relaxed));
            }
        }
        registry.live.retain(|lines| lines.as_ptr() != gone.as_ptr());
    }
}

/// One thread's cells. Not `Clone` and used through `&mut`: there is one writer to a cell.
#[derive(Debug)]
pub struct Writer {
    counters: Arc<Counters>,
    lines: Arc<[Line]>,
}

impl Writer {
    /// Adds `amount` to `cell`. A cell that does not exist counts nothing.
    #[inline]
    pub fn add(&mut self, cell: usize, amount: u64) {
        if let Some(line) = self.lines.get(cell / LINE) {
            line.add(cell, amount);
        }
    }

    /// The line of this number, for a gate that has several cells there. It is for the gate to see
    /// to it that only one thread adds to it.
    #[inline]
    pub(crate) fn line(&self, line: usize) -> Option<&Line> {
        self.lines.get(line)
    }

    /// Reads from this line.
    #[inline]
    pub(crate) fn touch(&self, line: usize) -> u64 {
        self.lines.get(line).map_or(0, Line::first)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.counters.retire(&self.lines);
    }
}

/// One thread's cells where their number is known when the gate is built: a cell is found without
/// asking whether there is one.
#[derive(Debug)]
pub(crate) struct Lines<const N: usize> {
    counters: Arc<Counters>,
    lines: Arc<[Line; N]>,
}

impl<const N: usize> Lines<N> {
    /// All of them, for a gate that sees to it that only one thread adds to them.
    #[inline]
    pub(crate) fn all(&self) -> &[Line; N] {
        &self.lines
    }

    /// Reads from each of these lines.
    #[inline]
    pub(crate) fn touch<const M: usize>(&self, lines: [usize; M]) -> u64 {
        let first = |line: usize| self.lines.get(line).map_or(0, Line::first);
        lines.into_iter().fold(0, |word, line| word ^ first(line))
    }

    /// Reads what adding up begins with.
    #[inline]
    pub(crate) fn touch_counters(&self) -> u64 {
        self.counters.cells as u64
    }
}

impl<const N: usize> Drop for Lines<N> {
    fn drop(&mut self) {
        self.counters.retire(&self.lines[..]);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_their_writers() {
        let counters = Counters::new(10);
        let mut a = counters.writer();
        let mut b = counters.writer();
        a.add(0, 1);
        a.add(9, 5);
        b.add(9, 7);
        b.add(10, 100);
        b.add(usize::MAX, 100);
        drop(a);
        assert_eq!(counters.totals(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 12]);
        drop(b);
        assert_eq!(counters.totals()[9], 12);
        assert!(lock(&counters.registry).live.is_empty());
    }

    #[test]
    fn many_threads_lose_no_count() {
        let counters = Counters::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut writer = counters.writer();
                    for _ in 0..10_000 {
                        writer.add(1, 3);
                    }
                });
            }
        });
        assert_eq!(counters.totals(), [0, 120_000]);
    }

    #[test]
    fn differences_survive_the_wrap() {
        let counters = Counters::new(1);
        let mut writer = counters.writer();
        writer.add(0, u64::MAX);
        let before = counters.totals()[0];
        writer.add(0, 3);
        assert_eq!(counters.totals()[0].wrapping_sub(before), 3);
    }
}
