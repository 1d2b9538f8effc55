//! TLS on both sides of the proxy: who is shown what, and what is said when files change.

use crate::outbound::Voice;
use crate::pool::{InvalidUpstream, Secure, Upstream};
use core::str::FromStr;
use std::io;
use tidegate_tls::{Client, ClientOptions, InvalidTls, News, PERIOD, Server, ServerOptions};

/// How to speak to programs behind TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamTls {
    /// Whom to believe, and what to show.
    pub options: ClientOptions,
    /// The name that their certificates have to have; the host that is connected to if not said.
    pub name: Option<String>,
}

/// Where a program is, and whether it wants TLS: `https://app:8443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it is.
    pub upstream: Upstream,
    /// Whether it wants TLS.
    pub tls: bool,
}

impl FromStr for Target {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let secure = text.strip_prefix("https://");
        let upstream: Upstream = secure.unwrap_or(text).parse()?;
        // There is one scheme to a place.
        let twice = secure.is_some_and(|rest| rest.starts_with("http://"));
        if twice || secure.is_some() && matches!(upstream, Upstream::Unix(_)) {
            return Err(InvalidUpstream::new(text));
        }
        Ok(Self { upstream, tls: secure.is_some() })
    }
}

impl UpstreamTls {
    /// Reads the files, and goes on doing so.
    pub(crate) fn client(&self, about: &str, voice: &Voice) -> Result<Client, Unusable> {
        let client = Client::new(self.options.clone())?;
        client.watch(PERIOD, told(about, voice))?;
        Ok(client)
    }

    /// For a program at `place`. Sockets in the file system need none.
    pub(crate) fn to(
        &self,
        client: &Client,
        place: &Upstream,
    ) -> Result<Option<Secure>, InvalidTls> {
        let host = match (&self.name, place) {
            (_, Upstream::Unix(_)) => return Ok(None),
            (Some(name), _) => name.clone(),
            (None, Upstream::Address(address)) => address.ip().to_string(),
            (None, Upstream::Name(name)) => {
                name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host).to_owned()
            }
        };
        Ok(Some(Secure { client: client.clone(), name: Client::name(&host)? }))
    }
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// Files or names are wrong.
    #[error(transparent)]
    Files(#[from] InvalidTls),
    /// Nobody can look at the files.
    #[error("the system gives us no thread: {0}")]
    Thread(#[from] io::Error),
}

/// Reads the files of a server, and goes on doing so.
pub(crate) fn server(options: ServerOptions, voice: &Voice) -> Result<Server, Unusable> {
    let server = Server::new(options)?;
    server.watch(PERIOD, told("tls", voice))?;
    Ok(server)
}

fn told(about: &str, voice: &Voice) -> impl Fn(News) + Send + 'static {
    let (about, voice) = (about.to_owned(), voice.clone());
    move |news| {
        voice.say(&match news {
            News::Refused(error) => format!("{about}: it goes on with the old files: {error}"),
            _ => format!("{about}: new certificates, for new connections"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (text, tls) in
            [("https://app:8443", true), ("https://10.0.0.1:1/", true), ("app:1", false)]
        {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.tls, tls, "{text}");
        }
        for text in ["https://app", "https://unix:/run/app", "https://http://a:1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
