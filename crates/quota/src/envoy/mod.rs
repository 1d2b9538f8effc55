//! Envoy fleets: proxies that know neither criticality nor cost take part in the quotas of a
//! service.
//!
//! An Envoy asks for each request (RLS, `rls`). Whoever answers for it is a task of the fleet like
//! any other, inside the server (`desk`): it has a gate, reports what it lets through, and is told
//! what it may.

pub(crate) mod desk;
pub(crate) mod rls;
