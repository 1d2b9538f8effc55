//! Reports in binary: protobuf in base64.
//!
//! Protobuf lets the last of two equal fields win, and so does every decoder of it. A report with a
//! field twice was not written by an encoder, so the fields are counted first.

use super::{InvalidReport, OrcaLoadReport};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::Message;

/// We write padding, as Envoy has it; gRPC's own writers leave it out, so both are read.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reports of ours are well below this and are read without allocating.
const STACK: usize = 512;

const UNREADABLE: InvalidReport = InvalidReport::Unreadable("binary");

pub(super) fn encode(report: &OrcaLoadReport, prefix: &str) -> String {
    let bytes = report.encode_to_vec();
    let mut text = String::with_capacity(prefix.len() + bytes.len().div_ceil(3) * 4);
    text.push_str(prefix);
    BASE64.encode_string(bytes, &mut text);
    text
}

pub(super) fn decode(value: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    let value = crate::text::trim(value);
    if value.len() <= STACK {
        let mut bytes = [0; STACK];
        let length = BASE64.decode_slice(value, &mut bytes).map_err(|_| UNREADABLE)?;
        return of_protobuf(&bytes[..length]);
    }
    of_protobuf(&BASE64.decode(value).map_err(|_| UNREADABLE)?)
}

fn of_protobuf(bytes: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    let seen = count_fields(bytes).ok_or(UNREADABLE)?;
    let report = OrcaLoadReport::decode(bytes).map_err(|_| UNREADABLE)?;
    let in_maps = [(4, &report.request_cost), (5, &report.utilization), (8, &report.named_metrics)];
    if in_maps.into_iter().any(|(field, map)| seen[field] != map.len()) {
        return Err(InvalidReport::Duplicate("a name"));
    }
    if [1, 2, 3, 6, 7, 9].into_iter().any(|field| seen[field] > 1) {
        return Err(InvalidReport::Duplicate("a field"));
    }
    report.check()?;
    Ok(report)
}

/// How often each of the nine fields is there. Others are skipped; groups, which no report ever
/// had, are not read.
fn count_fields(mut bytes: &[u8]) -> Option<[usize; 10]> {
    let mut seen = [0; 10];
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        bytes = bytes.get(length..)?;
        if let Some(count) = usize::try_from(key >> 3).ok().and_then(|field| seen.get_mut(field)) {
            *count += 1;
        }
    }
    Some(seen)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        // The tenth byte has one bit left.
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
