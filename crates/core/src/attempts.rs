//! Placeholder.
#![allow(missing_docs)]
use crate::decision::Advice;
use crate::units::Timestamp;
#[derive(Debug, Clone, Default)]
pub struct AttemptConfig;
#[derive(Debug)]
pub struct AttemptHistogram;
impl AttemptHistogram {
    pub fn new(_: AttemptConfig) -> Self {
        Self
    }
    pub fn record_counts(&mut self, _: [u64; 3], _: Timestamp) {}
    pub fn advice(&mut self, _: Timestamp) -> Advice {
        Advice::RetryElsewhere
    }
}
