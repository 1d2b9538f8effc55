//! The file as it is written.
//!
//! Names and shapes only; what the values mean is asked in `resolve`. Whatever could turn out to
//! make no sense knows its place ([`Spanned`]).

use core::fmt;
use core::marker::PhantomData;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde_saphyr::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) quota: Spanned<Quota>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quota {
    pub(super) listen: Option<Spanned<String>>,
    pub(super) state: Option<Spanned<String>>,
    pub(super) advertise: Option<Spanned<String>>,
    pub(super) tls: Option<Tls>,
    pub(super) trust_network: Option<Spanned<bool>>,
    pub(super) operators: Option<Who>,
    pub(super) election: Option<Spanned<Election>>,
    pub(super) parent: Option<Spanned<Parent>>,
    pub(super) services: Option<Spanned<Named<Service>>>,
    pub(super) doorman: Option<Spanned<Doorman>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parent {
    pub(super) servers: Spanned<Vec<Spanned<String>>>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) weight: Option<Spanned<u64>>,
    pub(super) tls: Option<Spanned<ParentTls>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParentTls {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

/// Identities, as they are written.
pub(super) type Who = Spanned<Vec<Spanned<String>>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert: String,
    pub(super) key: String,
    pub(super) client_ca: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Election {
    pub(super) etcd: Spanned<Vec<Spanned<String>>>,
    pub(super) prefix: Option<Spanned<String>>,
    pub(super) ttl: Option<Spanned<String>>,
    pub(super) tls: Option<Spanned<ParentTls>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) password_file: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Doorman {
    pub(super) clients: Option<Who>,
    pub(super) servers: Option<Who>,
    pub(super) parent: Option<Spanned<Above>>,
    pub(super) resources: Option<Spanned<Vec<Spanned<Template>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Above {
    pub(super) servers: Spanned<Vec<Spanned<String>>>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) tls: Option<Spanned<ParentTls>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Template {
    pub(super) identifier_glob: String,
    pub(super) capacity: f64,
    pub(super) safe_capacity: Option<f64>,
    #[serde(rename = "description")]
    pub(super) _description: Option<String>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) clients: Option<Who>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Algorithm {
    pub(super) kind: Spanned<String>,
    pub(super) lease_length: i64,
    pub(super) refresh_interval: i64,
    pub(super) learning_mode_duration: Option<i64>,
    /// None of the four has any; old files may.
    #[serde(default, rename = "parameters")]
    pub(super) _parameters: IgnoredAny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) capacity: Option<Resources>,
    pub(super) default: Option<Spanned<Limit>>,
    pub(super) hit: Option<Spanned<String>>,
    pub(super) tasks: Option<Who>,
    pub(super) zones: Option<Who>,
    pub(super) envoys: Option<Who>,
    #[serde(default)]
    pub(super) customers: Named<Limit>,
    #[serde(default)]
    pub(super) reports: Reports,
    #[serde(default)]
    pub(super) silence: Silence,
    #[serde(default)]
    pub(super) shares: Shares,
    #[serde(default)]
    pub(super) sizes: Sizes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resources {
    pub(super) cpu: Option<Spanned<f64>>,
    pub(super) memory: Option<Spanned<String>>,
}

/// What a customer may use: a number of CPUs, or one for each level that has its own.
#[derive(Debug)]
pub(super) enum Limit {
    Cpus(f64),
    Unlimited,
    Levels(Box<Levels>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Levels {
    pub(super) cpu: Option<Spanned<f64>>,
    pub(super) critical: Option<Spanned<f64>>,
    pub(super) sheddable_plus: Option<Spanned<f64>>,
    pub(super) sheddable: Option<Spanned<f64>>,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) identities: Option<Who>,
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor)
    }
}

struct LimitVisitor;

impl<'de> Visitor<'de> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a number of CPUs, `unlimited`, or a map such as {cpu: 10, sheddable: 2, memory: 1GiB}",
        )
    }

    fn visit_u64<E>(self, cpus: u64) -> Result<Limit, E> {
        Ok(Limit::Cpus(cpus as f64))
    }

    fn visit_i64<E>(self, cpus: i64) -> Result<Limit, E> {
        Ok(Limit::Cpus(cpus as f64))
    }

    fn visit_f64<E>(self, cpus: f64) -> Result<Limit, E> {
        Ok(Limit::Cpus(cpus))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Limit, E> {
        match word {
            "unlimited" => Ok(Limit::Unlimited),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limit, A::Error> {
        Levels::deserialize(MapAccessDeserializer::new(map))
            .map(|levels| Limit::Levels(Box::new(levels)))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reports {
    pub(super) every: Option<Spanned<String>>,
    pub(super) round: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Silence {
    pub(super) hold: Option<Spanned<String>>,
    pub(super) fade: Option<Spanned<String>>,
    pub(super) forget: Option<Spanned<String>>,
    pub(super) learning: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shares {
    pub(super) floor: Option<Spanned<String>>,
    pub(super) unseen: Option<Spanned<String>>,
    pub(super) safe: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sizes {
    pub(super) tasks: Option<Spanned<u64>>,
    pub(super) customers: Option<Spanned<u64>>,
    pub(super) customers_per_task: Option<Spanned<u64>>,
    pub(super) weight: Option<Spanned<u64>>,
}

/// A map from names to things, in the order of the file.
#[derive(Debug)]
pub(super) struct Named<T>(pub(super) Vec<(Spanned<String>, Spanned<T>)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Named(entries))
    }
}
