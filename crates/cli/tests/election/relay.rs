//! A network between two that can be cut.
//!
//! While it is cut nothing passes, and nobody is told: connections stay, new ones are taken, and
//! what was sent waits. When it is whole again what waited arrives, late, as packets do that were
//! sent again.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often to look whether it was cut.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    cut: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relay = Self { address, cut: Arc::default(), ended: Arc::default() };
        let here = relay.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if here.ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = stream else { return };
                let here = here.clone();
                std::thread::spawn(move || here.carry(&near, target));
            }
        });
        relay
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        // The listener looks when somebody comes.
        let _ = TcpStream::connect(self.address);
    }

    /// Returns whether the line still stands.
    fn wait(&self) -> bool {
        while self.cut.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
        !self.ended.load(Ordering::Relaxed)
    }

    fn carry(&self, near: &TcpStream, target: SocketAddr) {
        if !self.wait() {
            return;
        }
        let Ok(far) = TcpStream::connect(target) else { return };
        let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let here = self.clone();
        std::thread::spawn(move || here.copy(&from, &to));
        self.copy(&far, near);
    }

    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let _ = from.set_read_timeout(Some(LOOK_EVERY));
        let _ = to.set_nodelay(true);
        let mut bytes = [0; 16 << 10];
        while self.wait() {
            let length = match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            if !self.wait() || to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}
