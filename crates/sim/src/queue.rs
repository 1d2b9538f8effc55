//! What happens next.
//!
//! A discrete-event world spends most of its time here, so the queue is a plain four-ary heap of
//! small entries: half the levels of a binary heap, and the children of a node lie on one or two
//! cache lines. Events of the same moment come out in an order that depends on nothing but what
//! was put in, and when.

use tidegate_core::Timestamp;

const CHILDREN: usize = 4;

/// Events by time, earliest first.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: Vec<(Timestamp, E)>,
}

impl<E: Copy> EventQueue<E> {
    pub(crate) const fn new() -> Self {
        Self { heap: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Timestamp, event: E) {
        let mut hole = self.heap.len();
        self.heap.push((at, event));
        while hole > 0 {
            let parent = (hole - 1) / CHILDREN;
            if self.heap[parent].0 <= at {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = (at, event);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Timestamp, E)> {
        let last = self.heap.pop()?;
        let Some(&first) = self.heap.first() else { return Some(last) };
        let len = self.heap.len();
        let mut hole = 0;
        loop {
            let children = hole * CHILDREN + 1..(hole * CHILDREN + 1 + CHILDREN).min(len);
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { break };
            if self.heap[least].0 >= last.0 {
                break;
            }
            self.heap[hole] = self.heap[least];
            hole = least;
        }
        self.heap[hole] = last;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::rng::{Rng, SeededRng};

    #[test]
    fn events_come_in_the_order_of_time() {
        let mut queue = EventQueue::new();
        let mut rng = SeededRng::new(1);
        let mut out = Vec::new();
        for i in 0..10_000_u32 {
            queue.push(Timestamp::from_nanos(rng.below(1_000)), i);
            if i % 3 == 0 {
                queue.pop();
            }
        }
        while let Some((at, _)) = queue.pop() {
            out.push(at);
        }
        assert!(out.is_sorted());
        assert_eq!(out.len(), 10_000 - 3_334);
    }
}
