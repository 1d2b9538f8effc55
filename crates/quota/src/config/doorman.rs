//! Doorman's templates, in its own format.

use super::fault::Fault;
use super::raw;
use super::who::Reader;
use crate::access::DoormanAccess;
use tidegate_core::doorman::{AlgorithmDraft, Draft, Kind, Repository};

pub(super) fn resolve(
    raw: raw::Doorman,
    reader: &Reader,
) -> Result<(Repository, DoormanAccess), Fault> {
    let at = raw.resources.referenced;
    let places: Vec<_> = raw.resources.value.iter().map(|entry| entry.referenced).collect();
    let (mut drafts, mut own) = (Vec::new(), Vec::new());
    for entry in raw.resources.value {
        let (at, entry) = (entry.referenced, entry.value);
        own.push((entry.identifier_glob.clone(), at, entry.clients));
        let algorithm = entry.algorithm.map(|algorithm| {
            let kind = &algorithm.kind;
            let kind = kind.value.parse::<Kind>().map_err(|_| {
                let what = format!("`{}` is no algorithm", kind.value);
                let names = Kind::ALL.map(Kind::name);
                Fault::at(kind, what, format!("{} or {}", names[..3].join(", "), names[3]))
            })?;
            let raw::Algorithm { lease_length, refresh_interval, learning_mode_duration, .. } =
                algorithm;
            Ok(AlgorithmDraft { kind, lease_length, refresh_interval, learning_mode_duration })
        });
        drafts.push(Draft {
            identifier_glob: entry.identifier_glob,
            capacity: entry.capacity,
            safe_capacity: entry.safe_capacity,
            algorithm: algorithm.transpose()?,
        });
    }
    let templates = Repository::new(&drafts).map_err(|error| {
        let place = places.get(error.position - 1).copied().unwrap_or(at);
        Fault::new(place, error.to_string(), "see docs/quota.md, \"Doorman\"")
    })?;
    let access = reader.doorman(raw.clients, raw.servers, own, templates.clone())?;
    Ok((templates, access))
}
