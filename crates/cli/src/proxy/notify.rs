//! Tells the service manager how we are, as systemd's `sd_notify` does: a datagram to the socket
//! that `NOTIFY_SOCKET` names.
//!
//! A successor is not the process that the manager has started, and says so: `MAINPID`. Without
//! it the manager would take the end of the predecessor for the end of the service. If nobody
//! listens, nobody has to know.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// We serve, and are the process that counts.
pub(super) fn serving() {
    tell(&format!("READY=1\nMAINPID={}\nSTATUS=serving", std::process::id()));
}

/// We are on our way out, and nobody takes over.
pub(super) fn stopping() {
    tell("STOPPING=1\nSTATUS=leaving: what is in flight is finished");
}

fn tell(words: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        // A name that is in no file system.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(words.as_bytes(), &address);
    }
}
