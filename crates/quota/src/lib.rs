//! Quota.
