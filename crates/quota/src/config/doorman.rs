//! Doorman's templates, in its own format, or who has them.

use super::fault::Fault;
use super::parent::{self, DoormanParent};
use super::raw;
use super::who::Reader;
use crate::access::DoormanAccess;
use serde_saphyr::Spanned;
use tidegate_core::doorman::{AlgorithmDraft, Draft, Kind, Repository};

/// Where resources come from, and who may ask for them.
pub(super) struct Doorman {
    pub(super) templates: Option<Repository>,
    pub(super) parent: Option<DoormanParent>,
    pub(super) access: DoormanAccess,
}

pub(super) fn resolve(raw: Spanned<raw::Doorman>, reader: &Reader) -> Result<Doorman, Fault> {
    let (at, raw) = (raw.referenced, raw.value);
    match (raw.parent, raw.resources) {
        (Some(parent), None) => {
            let parent = parent::above(parent.value)?;
            let own = vec![("*".to_owned(), at, None)];
            let access = reader.doorman(raw.clients, raw.servers, own, None)?;
            Ok(Doorman { templates: None, parent: Some(parent), access })
        }
        (Some(_), Some(resources)) => {
            let what = "the server above says how resources are shared out";
            Err(Fault::at(&resources, what, "one of `parent` and `resources`"))
        }
        (None, None) => {
            let right = "`resources: [...]`, or `parent: { servers: [...] }`";
            Err(Fault::new(at, "there are no resources", right))
        }
        (None, Some(resources)) => {
            let (templates, own) = templates(resources)?;
            let access = reader.doorman(raw.clients, raw.servers, own, Some(templates.clone()))?;
            Ok(Doorman { templates: Some(templates), parent: None, access })
        }
    }
}

/// Templates, and for each its glob, its place and who may ask.
type Own = Vec<(String, serde_saphyr::Location, Option<raw::Who>)>;

fn templates(raw: Spanned<Vec<Spanned<raw::Template>>>) -> Result<(Repository, Own), Fault> {
    let at = raw.referenced;
    let places: Vec<_> = raw.value.iter().map(|entry| entry.referenced).collect();
    let (mut drafts, mut own) = (Vec::new(), Vec::new());
    for entry in raw.value {
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
    Ok((templates, own))
}
