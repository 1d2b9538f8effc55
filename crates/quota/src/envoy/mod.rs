//! Envoy fleets: proxies that know neither criticality nor cost take part in the quotas of a
//! service.
//!
//! An Envoy asks for each request (RLS, `rls`), or reports what it counts and is told how many
//! requests it may let through (RLQS, `rlqs`). With RLQS it is a task of its own. With RLS whoever
//! answers for it is a task of the fleet like
//! any other, inside the server (`desk`): it has a gate, reports what it lets through, and is told
//! what it may.

mod buckets;
mod claim;
pub(crate) mod costs;
pub(crate) mod desk;
pub(crate) mod health;
mod names;
pub(crate) mod rlqs;
pub(crate) mod rls;
