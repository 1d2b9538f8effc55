//! What customers may use across all proxies and tasks of a service, as a quota server says.
//!
//! A limit that stands in a file holds for one proxy. Where a service has many, `tidegate quota`
//! adds up what each customer uses at all of them and tells each its part. The library's client
//! does that; here it is attached to the proxy's task and kept for as long as the proxy lives.
//!
//! **Nobody but the server sets limits then.** A customer that only the file knows is one of
//! everyone else, whose limit the server tells: enrolled by the file it would have none.
//!
//! **Before the first word** of the server there are no limits. So connections wait for that word,
//! but not for longer than [`FIRST_WORD`]: a proxy that serves without quotas still sheds what the
//! program cannot do, and one that waits serves nobody. Once heard, the server may be away for as
//! long as it likes: what was told last holds, and then fades to the safe share.
//!
//! **Names.** Two tasks of one name throw each other out, and a successor lives beside the one
//! before until that has finished. So a name has the process in it, and a number from the second
//! proxy of a process on.

use crate::outbound::Voice;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;
use tidegate::Task;
use tidegate_quota::Client;
use tidegate_quota::client::{AttachError, Builder, own_name};
use tidegate_tls::ClientOptions;

/// How long connections wait for the server's first word: a server that is there answers within a
/// connection, a welcome and a round (a quarter of a second), with a pause of a tenth of a second
/// for each address at which nobody is. The kernel keeps connections for longer than this.
const FIRST_WORD: Duration = Duration::from_secs(2);
/// How often to look whether it came.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Proxies of this process that were attached, to tell their names apart.
static ATTACHED: AtomicU64 = AtomicU64::new(0);

/// Where limits come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaConfig {
    /// Quota servers, which are tried in turn.
    pub servers: Vec<String>,
    /// What the service is called there; as everywhere if not said.
    pub service: Option<String>,
    /// What this proxy is called there, with its process; by its host if not said.
    pub name: Option<String>,
    /// What to show there, and whom to believe.
    pub tls: Option<ClientOptions>,
}

impl QuotaConfig {
    /// Whether addresses and names are such.
    pub(crate) fn check(&self) -> Result<(), AttachError> {
        self.builder(u64::MAX).check()
    }

    /// A client for the proxy of this number.
    fn builder(&self, number: u64) -> Builder {
        let mut name = match &self.name {
            Some(name) => format!("{name}:{}", std::process::id()),
            None => own_name(),
        };
        if number > 0 {
            name = format!("{name}.{number}");
        }
        let mut builder = Client::builder(self.servers.iter().cloned()).name(name);
        if let Some(service) = &self.service {
            builder = builder.service(service.as_str());
        }
        if let Some(tls) = &self.tls {
            builder = builder.tls(tls.clone());
        }
        builder
    }

    /// Begins to report what is done by `task`, and to set its limits.
    pub(crate) fn attach(&self, task: &Task) -> Result<Client, AttachError> {
        self.builder(ATTACHED.fetch_add(1, Ordering::Relaxed)).attach(task)
    }
}

/// Waits until limits were told, for a moment.
pub(crate) fn wait_for(client: &Client, voice: &Voice) {
    let end = Instant::now() + FIRST_WORD;
    while client.state().standing.is_none() {
        if Instant::now() >= end {
            let why = client.state().trouble.map_or_else(String::new, |why| format!(" ({why})"));
            voice.say(&format!(
                "quota: no server was heard of yet{why}: until one is, quotas limit nobody"
            ));
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_of_one_process_have_names_of_their_own() {
        let config = QuotaConfig {
            servers: vec!["http://a:1".into()],
            name: Some("edge-1".into()),
            ..QuotaConfig::default()
        };
        let name = |number| format!("{:?}", config.builder(number));
        let process = format!("edge-1:{}", std::process::id());
        assert!(name(0).contains(&format!("\"{process}\"")), "{}", name(0));
        assert!(name(1).contains(&format!("\"{process}.1\"")), "{}", name(1));
    }
}
