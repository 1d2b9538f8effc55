//! What may be a name of a service, a task or a customer.

use tidegate_wire::customer::NAME_MAX;

/// Printable and without blanks, so that it can stand in headers, metrics and lines of text.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
