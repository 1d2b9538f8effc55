//! Asking a server how things stand.

use crate::link::{Link, LinkError};
use core::time::Duration;
use tidegate_tls::ClientOptions;
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{StatusRequest, StatusResponse};

/// Who does not answer in so long is not going to.
const PATIENCE: Duration = Duration::from_secs(5);
/// 65,536 customers with the longest names have 20 MB.
const MESSAGE_MAX: usize = 64 << 20;

/// Why nobody said how things stand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// An address or certificates are wrong.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// There is no server.
    #[error("no quota server answers: {0}")]
    Unreachable(String),
    /// It says no.
    #[error("it answers {message}")]
    Refused {
        /// By its code.
        code: tonic::Code,
        /// In its words.
        message: String,
    },
}

/// Asks the server at `url` about one service, or about all if its name is empty; with these
/// certificates, if any.
pub async fn status(
    url: &str,
    service: &str,
    tls: Option<ClientOptions>,
) -> Result<StatusResponse, StatusError> {
    let link = Link::new(tls, |_| {})?;
    let endpoint = link.endpoint(url)?.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = link.connect(&endpoint).await.map_err(StatusError::Unreachable)?;
    let mut client = QuotaClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let answer = client.status(StatusRequest { service: service.to_owned() }).await;
    answer.map(tonic::Response::into_inner).map_err(|status| StatusError::Refused {
        code: status.code(),
        message: link.told(&endpoint, &status),
    })
}
