//! Who listens there.
//!
//! It is looked up again and again beside the threads that serve, so it must not cost more where
//! there is more traffic. The kernel lists all sockets in one file, a hundred thousand of them
//! after a storm of connections, and to read all of these takes a few tenths of a second of a CPU
//! that requests wait for. But those that listen come first: what is after them is not read. And
//! our own files, one for each connection, are looked through only if nobody else has the socket.

use crate::pool::Upstream;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// What is read of it at once. The kernel makes as many lines as fit.
const PIECE: usize = 4096;

/// What is nobody to watch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is nobody to watch: auto, nothing, pid:NUMBER or cgroup:/NAME")]
pub struct InvalidWatch(pub(super) String);

/// The processes that listen at `upstream` and all that they have started, as far as they can be
/// seen.
pub fn find(upstream: &Upstream) -> Vec<u32> {
    let sockets = match upstream {
        Upstream::Address(address) => tcp_sockets(*address),
        Upstream::Unix(path) => unix_sockets(path),
        // Where a name leads today somebody else may be tomorrow; but on this machine it is us.
        Upstream::Name(name) => {
            let addresses = std::net::ToSocketAddrs::to_socket_addrs(name.as_str());
            addresses.into_iter().flatten().flat_map(tcp_sockets).collect()
        }
    };
    if sockets.is_empty() { Vec::new() } else { with_children(&holders(&sockets)) }
}

fn tcp_sockets(address: SocketAddr) -> BTreeSet<u64> {
    let mut sockets = BTreeSet::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if let Ok(file) = std::fs::File::open(file) {
            sockets.extend(listening(BufReader::with_capacity(PIECE, file), address));
        }
    }
    sockets
}

/// The numbers of the sockets in `text` that listen at `address`. Reads to the first that does not
/// listen at all.
fn listening(text: impl BufRead, address: SocketAddr) -> Vec<u64> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (ip, port) = parse_address(fields.get(1)?)?;
        let there = ip == address.ip() || ip.is_unspecified() || mapped(ip) == address.ip();
        (port == address.port() && there).then(|| fields.get(9)?.parse().ok())?
    };
    let listens = |line: &String| line.split_ascii_whitespace().nth(3) == Some(LISTENS);
    let lines = text.lines().map_while(Result::ok).skip(1).take_while(listens);
    lines.filter_map(|line| socket(&line)).collect()
}

fn mapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// `0100007F:1F90`: words of four bytes, in the order of this machine.
fn parse_address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some((ip, port))
}

fn unix_sockets(path: &Path) -> BTreeSet<u64> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        (Path::new(fields.get(7)?) == path).then(|| fields.get(6)?.parse().ok())?
    };
    text.lines().skip(1).filter_map(socket).collect()
}

/// The processes that have one of the sockets open.
fn holders(sockets: &BTreeSet<u64>) -> Vec<u32> {
    let links: BTreeSet<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let holds = |pid: &u32| {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            let link = std::fs::read_link(file.path()).ok();
            link.and_then(|link| link.to_str().map(|link| links.contains(link))).unwrap_or(false)
        })
    };
    let own = std::process::id();
    let others: Vec<u32> =
        processes().into_iter().filter(|pid| *pid != own && holds(pid)).collect();
    if others.is_empty() && holds(&own) { vec![own] } else { others }
}

fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `roots` and all that they have started, and those that these have started.
pub(super) fn with_children(roots: &[u32]) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut there = BTreeSet::new();
    for pid in processes() {
        there.insert(pid);
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found: BTreeSet<u32> = BTreeSet::new();
    let mut open: Vec<u32> = roots.iter().copied().filter(|pid| there.contains(pid)).collect();
    while let Some(pid) = open.pop() {
        if found.insert(pid) {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    // Where a proxy was started by the program itself, it is not the program.
    let own = std::process::id();
    let alone = roots == [own];
    found.into_iter().filter(|pid| *pid != own || alone || roots.contains(&own)).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses, and may hold any of both.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";

    /// A line as the kernel writes it, cut after the number of the socket.
    fn line(local: &str, state: &str, socket: u64) -> String {
        let rest = "00000000:00000000 00:00000000 00000000     0        0";
        format!("\n   0: {local} 00000000:0000 {state} {rest} {socket} 1 0 100 0 0 10 0")
    }

    fn tcp() -> String {
        let lines = [
            line("0100007F:1F90", "0A", 4711),
            line("00000000:1F91", "0A", 4712),
            line("0100007F:1F90", "01", 4713),
        ];
        format!("{HEAD}{}\n   x: nonsense\n", lines.concat())
    }

    /// Says so if somebody reads on.
    struct Endless;

    impl std::io::Read for Endless {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            panic!("it reads on after those that listen");
        }
    }

    #[test]
    fn what_comes_after_those_that_listen_is_not_read() {
        let text = std::io::Read::chain(tcp().into_bytes().leak() as &[u8], Endless);
        let address = "127.0.0.1:8081".parse().unwrap();
        assert_eq!(listening(BufReader::new(text), address), [4712]);
    }

    fn tcp6() -> String {
        let any = format!("{}:1F92", "0".repeat(32));
        let local = "00000000000000000000000001000000:1F93";
        format!("{HEAD}{}{}", line(&any, "0A", 4714), line(local, "0A", 4715))
    }

    #[test]
    fn listeners_by_address() {
        let (tcp, tcp6) = (tcp(), tcp6());
        for (text, address, sockets) in [
            (tcp.as_str(), "127.0.0.1:8080", vec![4711]),
            (tcp.as_str(), "127.0.0.2:8080", vec![]),
            (tcp.as_str(), "127.0.0.1:8081", vec![4712]),
            (tcp.as_str(), "127.0.0.1:8082", vec![]),
            (tcp6.as_str(), "127.0.0.1:8082", vec![4714]),
            (tcp6.as_str(), "[::1]:8083", vec![4715]),
            (tcp6.as_str(), "127.0.0.1:8083", vec![]),
            ("", "127.0.0.1:8083", vec![]),
        ] {
            assert_eq!(listening(text.as_bytes(), address.parse().unwrap()), sockets, "{address}");
        }
    }

    #[test]
    fn children_are_part_of_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = with_children(&[std::process::id()]);
        let there = found.contains(&child.id()) && found.contains(&std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(there, "{found:?}");
        assert!(with_children(&[u32::MAX]).is_empty());
    }
}
