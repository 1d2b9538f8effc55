//! Which role a file is for.

use super::{Config, ConfigError, RoleName, Wrong, outbound, text};
use crate::outbound::OutboundConfig;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What a proxy does, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Role {
    /// It stands beside a program that serves, and lets in what that can do.
    Inbound(Box<Config>),
    /// It stands beside a program that calls, and sends what others can do.
    Outbound(Box<OutboundConfig>),
    /// It stands before backends that others use too, and lets batch work wait for its turn.
    Batch(Box<OutboundConfig>),
}

impl Role {
    /// Reads what stands in `file`, of whichever role it is.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        /// The rest is for whoever knows the role.
        #[derive(Deserialize)]
        struct Said {
            #[serde(default)]
            role: RoleName,
        }
        match read::<Said>(file, text)?.role {
            RoleName::Inbound => Config::parse(file, text).map(Self::from),
            RoleName::Outbound | RoleName::Edge => {
                let raw: outbound::Raw = read(file, text)?;
                raw.resolve().map(Self::from).map_err(|wrong| refused(file, wrong))
            }
            RoleName::Batch => {
                let raw: outbound::Raw = read(file, text)?;
                let config = raw.resolve().map_err(|wrong| refused(file, wrong))?;
                Ok(Self::Batch(Box::new(config)))
            }
        }
    }
}

impl From<Config> for Role {
    fn from(config: Config) -> Self {
        Self::Inbound(Box::new(config))
    }
}

impl From<OutboundConfig> for Role {
    fn from(config: OutboundConfig) -> Self {
        Self::Outbound(Box::new(config))
    }
}

/// What stands in a file, as it stands.
pub(super) fn read<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ConfigError> {
    let options = serde_saphyr::options! {
        // `on` and `off` are words of ours.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let (what, right) = text::explained(&error.to_string());
        ConfigError { file: file.to_owned(), at: Some((line.max(1), column.max(1))), what, right }
    })
}

/// What is wrong in a file, if not in one place of it.
pub(super) fn refused(file: &str, (what, right): Wrong) -> ConfigError {
    ConfigError { file: file.to_owned(), at: None, what, right }
}
