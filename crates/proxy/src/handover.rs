//! One process after the other, without a connection lost.
//!
//! A proxy that is replaced by another (a new version, a new configuration) may neither be missing
//! in between, nor have connections in its queues that nobody takes. So the new one asks the old
//! one for its sockets, over a socket in the file system that both were told of:
//!
//! ```text
//! successor                             incumbent
//!   |--- tidegate-handover 1 ------------->|
//!   |<-- listener 0 127.0.0.1:8000 --------|   with the socket itself (SCM_RIGHTS), one a line
//!   |<-- listener 1 127.0.0.1:8001 --------|
//!   |<-- end ------------------------------|
//!   |    starts, serves                    |   both take connections
//!   |--- serving 0 1 --------------------->|   takes none any more, is a lame duck, ends
//!   |<-- bye ------------------------------|
//! ```
//!
//! Until `serving` nothing has changed for the incumbent: a successor that does not like its
//! configuration, or dies, was never there. An incumbent that dies leaves the sockets to the
//! successor, who has them already.
//!
//! Who holds these sockets is the service. So both sides ask the kernel who the other is, and speak
//! only to their own user and to root.

use crate::run::Incumbent;
use crate::sockets::{Group, Legacy};
use core::mem::MaybeUninit;
use core::time::Duration;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixListener;
use tokio::sync::watch;

const HELLO: &str = "tidegate-handover 1";

/// How long one side waits for what the other can say at once. How long a successor takes to serve
/// is its own matter.
const PATIENCE: Duration = Duration::from_secs(5);

/// As many sockets as the kernel takes with one message.
const SOCKETS_MAX: usize = 253;

/// The longest line that makes sense is a list of sockets, six bytes each.
const LINE_MAX: usize = 16 * 1024;

/// Why one could not take over from another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The socket in the file system cannot be used.
    #[error("{}: {source}", path.display())]
    Socket {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Somebody of another user is there.
    #[error("user {0} is at the other end, and only our own user and root are spoken to")]
    Stranger(u32),
    /// It did not say what it should have, or nothing at all.
    #[error("{0}")]
    Talk(String),
    /// It goes on as before.
    #[error("it does not leave, but says `{0}`")]
    Declined(String),
}

fn talk(error: &io::Error) -> HandoverError {
    HandoverError::Talk(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it does not answer; another successor may be about to take over".to_owned()
        }
        _ => format!("it broke off: {error}"),
    })
}

/// One that serves, and has handed us what it listens at.
#[derive(Debug)]
pub struct Predecessor {
    io: UnixStream,
}

/// Asks whoever serves for what it listens at. Nothing if nobody does.
pub fn ask(path: &Path) -> Result<Option<(Predecessor, Legacy)>, HandoverError> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let failed = |source| HandoverError::Socket { path: path.to_owned(), source };
    let mut io = match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return Ok(None),
        other => other.map_err(failed)?,
    };
    one_of_us(&io)?;
    io.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    io.write_all(format!("{HELLO}\n").as_bytes()).map_err(|error| talk(&error))?;
    let (mut text, mut sockets) = (Vec::new(), Vec::new());
    while !text.ends_with(b"end\n") {
        let came = receive(&io, &mut text, &mut sockets).map_err(|error| talk(&error))?;
        if came == 0 || text.len() > LINE_MAX * SOCKETS_MAX {
            let said = String::from_utf8_lossy(&text);
            return Err(HandoverError::Talk(format!("it broke off after `{}`", said.trim())));
        }
    }
    let legacy = read(&String::from_utf8_lossy(&text), sockets)?;
    Ok(Some((Predecessor { io }, legacy)))
}

impl Predecessor {
    /// We serve, at these of its sockets: it is to end. If it declines it goes on as before, and it
    /// is us who should end; whatever else happens, it is gone or about to be.
    pub fn replaced(mut self, taken: &BTreeSet<usize>) -> Result<(), HandoverError> {
        let numbers: Vec<String> = taken.iter().map(|number| format!(" {number}")).collect();
        let line = format!("serving{}\n", numbers.concat());
        self.io.write_all(line.as_bytes()).map_err(|error| talk(&error))?;
        // It may be busy, and has to be heard: otherwise both would serve for good. If it dies,
        // this ends.
        self.io.set_read_timeout(None).map_err(|error| talk(&error))?;
        let mut answer = String::new();
        self.io.read_to_string(&mut answer).map_err(|error| talk(&error))?;
        match answer.trim() {
            "bye" => Ok(()),
            other => Err(HandoverError::Declined(other.to_owned())),
        }
    }
}

/// One more message, with what came along.
fn receive(io: &UnixStream, text: &mut Vec<u8>, sockets: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let came = recvmsg(io, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    text.extend_from_slice(bytes.get(..came).unwrap_or_default());
    Ok(came)
}

/// Sockets by the lines that came with them.
fn read(text: &str, sockets: Vec<OwnedFd>) -> Result<Legacy, HandoverError> {
    let wrong = |line: &str| HandoverError::Talk(format!("it says `{line}`"));
    let mut legacy = Legacy::default();
    let lines = text.lines().filter(|line| *line != "end");
    if lines.clone().count() != sockets.len() {
        return Err(HandoverError::Talk("it names more or fewer sockets than it gives".into()));
    }
    for (line, socket) in lines.zip(sockets) {
        let mut words = line.split(' ');
        let (Some("listener"), Some(number), Some(asked), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong(line));
        };
        let number: usize = number.parse().map_err(|_| wrong(line))?;
        let asked: SocketAddr = asked.parse().map_err(|_| wrong(line))?;
        if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
            return Err(HandoverError::Talk(format!("at {asked} nobody listens")));
        }
        let socket = TcpListener::from(socket);
        match legacy.groups.iter_mut().find(|group| group.number == number) {
            Some(group) => group.sockets.push(socket),
            None => legacy.groups.push(Group { number, asked, sockets: vec![socket] }),
        }
    }
    Ok(legacy)
}

fn one_of_us(io: impl AsFd) -> Result<(), HandoverError> {
    let peer = sockopt::socket_peercred(&io).map_err(|error| talk(&error.into()))?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(HandoverError::Stranger(peer.uid.as_raw()))
}

/// Where successors ask.
#[derive(Debug)]
pub struct Heirs {
    path: PathBuf,
    /// By device and number, as a successor puts its own in the same place.
    file: (u64, u64),
    listener: UnixListener,
    /// Whether the place is a successor's, or may be.
    given: bool,
}

impl Heirs {
    /// Waits for them at `path`, in the place of whatever socket is there. Must be called within a
    /// runtime.
    pub fn at(path: &Path) -> Result<Self, HandoverError> {
        let failed = |source| HandoverError::Socket { path: path.to_owned(), source };
        // Beside it and then renamed, so that there is one at all times.
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let own = PathBuf::from(own);
        let _ = std::fs::remove_file(&own);
        let listener = UnixListener::bind(&own).map_err(failed)?;
        let placed = std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::metadata(&own))
            .and_then(|found| std::fs::rename(&own, path).map(|()| found));
        match placed {
            Ok(found) => {
                let (path, file) = (path.to_owned(), (found.dev(), found.ino()));
                Ok(Self { path, file, listener, given: false })
            }
            Err(source) => {
                let _ = std::fs::remove_file(&own);
                Err(failed(source))
            }
        }
    }

    /// Hands over to the first who asks, and comes to serve. One at a time: the next waits until
    /// the first has given up. `told` hears of those who have.
    pub async fn hand_over(
        mut self,
        current: watch::Receiver<Incumbent>,
        told: impl Fn(HandoverError),
    ) {
        loop {
            let Ok((io, _)) = self.listener.accept().await else {
                // Out of file descriptors, most likely: it passes.
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let incumbent = current.borrow().clone();
            // A successor may be there before it is heard, if this one ends meanwhile.
            self.given = true;
            match converse(io, &incumbent, &current).await {
                Ok(()) => return,
                Err(error) => told(error),
            }
            self.given = false;
        }
    }
}

impl Drop for Heirs {
    fn drop(&mut self) {
        // A successor puts its own there. To look whose it is and then to remove it would now and
        // then remove that one: it may come in between.
        if self.given {
            return;
        }
        let still = |found: std::fs::Metadata| (found.dev(), found.ino()) == self.file;
        if std::fs::symlink_metadata(&self.path).is_ok_and(still) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

async fn converse(
    mut io: tokio::net::UnixStream,
    incumbent: &Incumbent,
    current: &watch::Receiver<Incumbent>,
) -> Result<(), HandoverError> {
    one_of_us(&io)?;
    let hello = tokio::time::timeout(PATIENCE, line(&mut io)).await;
    match hello.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(hello) if hello == HELLO => {}
        Ok(other) => {
            let _ = io.write_all(format!("this is {HELLO}\n").as_bytes()).await;
            return Err(HandoverError::Talk(format!("a successor says `{other}`")));
        }
        Err(error) => return Err(talk(&error)),
    }
    let given = async {
        give(&io, &incumbent.legacy()?).await?;
        io.write_all(b"end\n").await
    };
    given.await.map_err(|error| talk(&error))?;
    // It may take as long as it likes; if it ends, this does.
    let said = line(&mut io).await.map_err(|error| talk(&error))?;
    let taken = said.strip_prefix("serving").map(|numbers| {
        numbers.split_whitespace().map(str::parse).collect::<Result<BTreeSet<usize>, _>>()
    });
    let Some(Ok(taken)) = taken else {
        return Err(HandoverError::Talk(format!("a successor says `{said}`")));
    };
    if !current.borrow().is(incumbent) {
        let _ = io.write_all(b"no: reconfigured meanwhile, ask again\n").await;
        return Err(HandoverError::Talk("a successor came too late, after a reload".to_owned()));
    }
    incumbent.replaced(&taken);
    // It knows by the end of the connection as well.
    let _ = io.write_all(b"bye\n").await;
    Ok(())
}

/// A line, without its end.
async fn line(io: &mut tokio::net::UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        match io.read_u8().await? {
            b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            _ if line.len() >= LINE_MAX => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
}

/// All sockets, each with its line.
async fn give(io: &tokio::net::UnixStream, legacy: &Legacy) -> io::Result<()> {
    let each = |group: &Group| {
        let line = format!("listener {} {}\n", group.number, group.asked);
        vec![line; group.sockets.len()]
    };
    let lines: Vec<String> = legacy.groups.iter().flat_map(each).collect();
    let sockets: Vec<_> =
        legacy.groups.iter().flat_map(|group| &group.sockets).map(AsFd::as_fd).collect();
    for (lines, sockets) in lines.chunks(SOCKETS_MAX).zip(sockets.chunks(SOCKETS_MAX)) {
        let text = lines.concat();
        let text = text.as_bytes();
        let sent = io.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(sockets));
            Ok(sendmsg(io, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)?)
        });
        let mut rest = text.get(sent.await?..).unwrap_or_default();
        while !rest.is_empty() {
            io.writable().await?;
            match io.try_write(rest) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
