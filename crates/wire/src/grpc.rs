//! Statuses of gRPC as they stand in headers and trailers.

use crate::proto::google::rpc::quota_failure::Violation;
use crate::proto::google::rpc::{QuotaFailure, RetryInfo, Status};
use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use core::fmt::Write;
use core::time::Duration;
use http::HeaderValue;
use prost::Message;
use prost_types::Any;

/// How a gRPC call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are gRPC's own, and so is their meaning")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// All codes, by number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Reads a `grpc-status`. What is no code of gRPC is `Unknown`, as gRPC has it.
    pub fn parse(value: &[u8]) -> Self {
        let number = crate::text::number(value).and_then(|number| usize::try_from(number).ok());
        number.and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// The code as a header.
    pub const fn value(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Ok => "0",
            Self::Cancelled => "1",
            Self::Unknown => "2",
            Self::InvalidArgument => "3",
            Self::DeadlineExceeded => "4",
            Self::NotFound => "5",
            Self::AlreadyExists => "6",
            Self::PermissionDenied => "7",
            Self::ResourceExhausted => "8",
            Self::FailedPrecondition => "9",
            Self::Aborted => "10",
            Self::OutOfRange => "11",
            Self::Unimplemented => "12",
            Self::Internal => "13",
            Self::Unavailable => "14",
            Self::DataLoss => "15",
            Self::Unauthenticated => "16",
        })
    }
}

/// Encodes a text for `grpc-message`: everything but printable ASCII, and `%`, as `%XX`.
pub fn encode_message(text: &str) -> HeaderValue {
    let plain = |b: u8| matches!(b, b' '..=b'~') && b != b'%';
    let mut encoded = String::with_capacity(text.len());
    for b in text.bytes() {
        if plain(b) {
            encoded.push(char::from(b));
        } else {
            // A string takes whatever it is given.
            _ = write!(encoded, "%{b:02X}");
        }
    }
    HeaderValue::try_from(encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Decodes a `grpc-message`. What is no proper `%XX` stays as it is, and what is no UTF-8 then is
/// replaced: a message must not be lost for being malformed.
pub fn decode_message(value: &[u8]) -> String {
    let bytes: Vec<u8> = crate::text::percent_decoded(value).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The details of a customer's being out of quota: a `google.rpc.Status` with when to come back,
/// and whose quota it is if that may be told.
pub(crate) fn quota_details(
    message: &str,
    retry_delay: Duration,
    customer: Option<&str>,
) -> HeaderValue {
    let retry = RetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: i64::try_from(retry_delay.as_secs()).unwrap_or(i64::MAX),
            nanos: retry_delay.subsec_nanos().cast_signed(),
        }),
    };
    let violation = Violation {
        subject: customer.map(|name| format!("customer:{name}")).unwrap_or_default(),
        description: message.to_owned(),
    };
    let quota = QuotaFailure { violations: vec![violation] };
    let any = |name: &str, value: Vec<u8>| Any {
        type_url: format!("type.googleapis.com/google.rpc.{name}"),
        value,
    };
    let status = Status {
        code: Code::ResourceExhausted as i32,
        message: message.to_owned(),
        details: vec![
            any("RetryInfo", retry.encode_to_vec()),
            any("QuotaFailure", quota.encode_to_vec()),
        ],
    };
    let text = BASE64_STANDARD_NO_PAD.encode(status.encode_to_vec());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_numbers() {
        for (number, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            assert_eq!(code.value().to_str().unwrap(), number.to_string());
            assert_eq!(Code::parse(code.value().as_bytes()), code);
        }
        for nonsense in ["", "17", "-1", "OK", "8 8", "99999999999999999999"] {
            assert_eq!(Code::parse(nonsense.as_bytes()), Code::Unknown, "{nonsense:?}");
        }
    }

    #[test]
    fn messages_by_hand() {
        for (text, encoded) in [
            ("out of quota; don't retry", "out of quota; don't retry"),
            ("100 % full", "100 %25 full"),
            ("7µs\n", "7%C2%B5s%0A"),
        ] {
            assert_eq!(encode_message(text).to_str().unwrap(), encoded);
            assert_eq!(decode_message(encoded.as_bytes()), text);
        }
        assert_eq!(decode_message(b"%zz %C2"), "%zz \u{fffd}");
    }

    #[test]
    fn details_as_google_lays_them_out() {
        let value = quota_details("no", Duration::from_millis(1_500), Some("maps"));
        let bytes = BASE64_STANDARD_NO_PAD.decode(value.as_bytes()).unwrap();
        // Code 8, "no", RetryInfo {1 s, 500,000,000 ns}, QuotaFailure {"customer:maps", "no"}.
        let mut expected = vec![0x08, 8, 0x12, 2];
        expected.extend(b"no");
        let retry = [0x0A, 8, 0x08, 1, 0x10, 0x80, 0xCA, 0xB5, 0xEE, 0x01];
        let mut quota = vec![0x0A, 19, 0x0A, 13];
        quota.extend(b"customer:maps");
        quota.extend([0x12, 2]);
        quota.extend(b"no");
        for (url, value) in [
            (&b"type.googleapis.com/google.rpc.RetryInfo"[..], &retry[..]),
            (b"type.googleapis.com/google.rpc.QuotaFailure", &quota),
        ] {
            expected.extend([0x1A, (url.len() + value.len() + 4) as u8, 0x0A, url.len() as u8]);
            expected.extend(url);
            expected.extend([0x12, value.len() as u8]);
            expected.extend(value);
        }
        assert_eq!(bytes, expected);
    }
}
