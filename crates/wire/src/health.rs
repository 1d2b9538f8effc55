//! Health by datagram: a question and an answer of 64 bytes each.
//!
//! A connection that is kept only to know whether its peer is well costs memory on both sides. A
//! datagram costs nothing in between. It has to be safe to answer, as anybody can send one from
//! anybody's address:
//!
//! - The answer is no longer than the question, so nobody is flooded by our hand who is not flooded
//!   already. Whatever is shorter than a question gets no answer.
//! - The answer carries the question's nonce. Who asks believes only what carries the nonce of its
//!   last question and comes from where it asked: neither a stranger who cannot see the question
//!   nor an old answer can speak for a peer. Who can see the question can, as on any network
//!   without encryption: health is a hint where to send, and never lets anybody in.
//!
//! ```text
//!           0     4       5      6  8      24      28   32   36   40   44   48  64
//! question  TGH1  kind=1  0      0  nonce  waited  0
//! answer    TGH1  kind=2  state  0  nonce  again   app  cpu  rps  eps  rif  0
//! ```
//!
//! Numbers are big-endian and 32 bits. `waited` and `again` are milliseconds: how long ago who asks
//! has asked last (all ones: never), and how long it is to wait now. `app` and `cpu` are
//! utilizations in millionths, `rps` and `eps` requests and errors a second in thousandths, `rif`
//! is how many requests are in flight. What is more than fits is as much as fits. The version is
//! the last byte of the first four; bytes that are 0 mean nothing yet, have to be 0 in a question,
//! and are passed over in an answer.

use core::time::Duration;

/// How many bytes a question has, and an answer.
pub const SIZE: usize = 64;

const MAGIC: [u8; 3] = *b"TGH";
const VERSION: u8 = b'1';
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
/// As `waited`: it asks for the first time.
const FIRST: u32 = u32::MAX;

/// What is sent back as it came, so that nobody else can answer.
pub type Nonce = [u8; 16];

/// Asks how a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Drawn anew for each.
    pub nonce: Nonce,
    /// How long ago it has asked last, if it has.
    pub waited: Option<Duration>,
}

/// Whether a task takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Not yet.
    Starting = 1,
    /// Yes.
    Serving = 2,
    /// Not any more, or not for long.
    LameDuck = 3,
}

/// How a task is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// That of the question.
    pub nonce: Nonce,
    /// Whether it takes requests.
    pub state: State,
    /// When to ask again.
    pub again: Duration,
    /// Utilization as the application sees it.
    pub application_utilization: f64,
    /// CPU used over CPU reserved.
    pub cpu_utilization: f64,
    /// Requests a second.
    pub rps: f64,
    /// Errors a second.
    pub eps: f64,
    /// Requests in flight.
    pub rif: u32,
}

/// Why a datagram is none of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// It is shorter or longer.
    #[error("a datagram of health has {SIZE} bytes")]
    Length,
    /// It does not begin as ours do.
    #[error("it is no datagram of health")]
    Magic,
    /// It is of a version that came later.
    #[error("it is of another version")]
    Version,
    /// It is the other kind, or has something where nothing may be.
    #[error("it makes no sense")]
    Malformed,
}

fn begun(kind: u8, nonce: &Nonce) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..3].copy_from_slice(&MAGIC);
    bytes[3] = VERSION;
    bytes[4] = kind;
    bytes[8..24].copy_from_slice(nonce);
    bytes
}

/// The rest is as it should be if this says so.
fn opened(bytes: &[u8], kind: u8) -> Result<&[u8; SIZE], Invalid> {
    let bytes: &[u8; SIZE] = bytes.try_into().map_err(|_| Invalid::Length)?;
    if bytes[..3] != MAGIC {
        return Err(Invalid::Magic);
    }
    if bytes[3] != VERSION {
        return Err(Invalid::Version);
    }
    if bytes[4] == kind { Ok(bytes) } else { Err(Invalid::Malformed) }
}

fn nonce(bytes: &[u8; SIZE]) -> Nonce {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&bytes[8..24]);
    nonce
}

fn number(bytes: &[u8; SIZE], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn millis(span: Duration) -> u32 {
    // All ones has a meaning of its own.
    u32::try_from(span.as_millis()).unwrap_or(FIRST).min(FIRST - 1)
}

/// Casting stops at both ends, and makes 0 of what is no number.
fn fixed(value: f64, unit: f64) -> u32 {
    (value * unit).round() as u32
}

impl Question {
    /// As it is sent.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut bytes = begun(QUESTION, &self.nonce);
        bytes[24..28].copy_from_slice(&self.waited.map_or(FIRST, millis).to_be_bytes());
        bytes
    }

    /// What was sent.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let bytes = opened(bytes, QUESTION)?;
        if bytes[5..8].iter().chain(&bytes[28..]).any(|byte| *byte != 0) {
            return Err(Invalid::Malformed);
        }
        let waited = Some(number(bytes, 24)).filter(|waited| *waited != FIRST);
        let waited = waited.map(|waited| Duration::from_millis(waited.into()));
        Ok(Self { nonce: nonce(bytes), waited })
    }
}

/// Utilizations are in millionths, rates in thousandths.
const UTILIZATION: f64 = 1e6;
const RATE: f64 = 1e3;

impl Answer {
    /// As it is sent.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut bytes = begun(ANSWER, &self.nonce);
        bytes[5] = self.state as u8;
        for (at, value) in [
            (24, millis(self.again)),
            (28, fixed(self.application_utilization, UTILIZATION)),
            (32, fixed(self.cpu_utilization, UTILIZATION)),
            (36, fixed(self.rps, RATE)),
            (40, fixed(self.eps, RATE)),
            (44, self.rif),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    /// What was sent. Whether it carries the right nonce is for whoever has asked.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let bytes = opened(bytes, ANSWER)?;
        let state = match bytes[5] {
            1 => State::Starting,
            2 => State::Serving,
            3 => State::LameDuck,
            _ => return Err(Invalid::Malformed),
        };
        let real = |at: usize, unit: f64| f64::from(number(bytes, at)) / unit;
        Ok(Self {
            nonce: nonce(bytes),
            state,
            again: Duration::from_millis(number(bytes, 24).into()),
            application_utilization: real(28, UTILIZATION),
            cpu_utilization: real(32, UTILIZATION),
            rps: real(36, RATE),
            eps: real(40, RATE),
            rif: number(bytes, 44),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_table_has_it() {
        let nonce = *b"0123456789abcdef";
        let question = Question { nonce, waited: Some(Duration::from_millis(0x0102)) };
        let mut bytes = [0; SIZE];
        bytes[..28].copy_from_slice(b"TGH1\x01\0\0\x000123456789abcdef\0\0\x01\x02");
        assert_eq!(question.encode(), bytes);
        assert_eq!(Question::decode(&bytes), Ok(question));
        bytes[24..28].fill(0xff);
        assert_eq!(Question::decode(&bytes), Ok(Question { nonce, waited: None }));
        let answer = Answer {
            nonce,
            state: State::LameDuck,
            again: Duration::from_secs(5),
            application_utilization: 0.25,
            cpu_utilization: 1.5,
            rps: 0.001,
            eps: 7.0,
            rif: 3,
        };
        let bytes = answer.encode();
        assert_eq!(&bytes[..8], b"TGH1\x02\x03\0\0");
        assert_eq!(
            bytes[24..48],
            [5_000, 250_000, 1_500_000, 1, 7_000, 3].map(u32::to_be_bytes).concat()
        );
        assert_eq!(Answer::decode(&bytes), Ok(answer));
    }

    #[test]
    fn what_is_none_of_ours() {
        let question = Question { nonce: [7; 16], waited: None }.encode();
        let change = |at: usize, byte: u8| {
            let mut bytes = question;
            bytes[at] = byte;
            Question::decode(&bytes)
        };
        assert_eq!(Question::decode(&question[..63]), Err(Invalid::Length));
        assert_eq!(Question::decode(&[question.as_slice(), b"x"].concat()), Err(Invalid::Length));
        assert_eq!(Question::decode(b""), Err(Invalid::Length));
        for (at, byte, invalid) in [
            (0, b'X', Invalid::Magic),
            (3, b'2', Invalid::Version),
            (4, ANSWER, Invalid::Malformed),
            (5, 1, Invalid::Malformed),
            (63, 1, Invalid::Malformed),
        ] {
            assert_eq!(change(at, byte), Err(invalid), "{at}");
        }
        assert_eq!(Answer::decode(&question), Err(Invalid::Malformed));
    }

    #[test]
    fn numbers_that_do_not_fit_are_as_much_as_fits() {
        let answer = Answer {
            nonce: [0; 16],
            state: State::Serving,
            again: Duration::MAX,
            application_utilization: f64::NAN,
            cpu_utilization: -1.0,
            rps: f64::INFINITY,
            eps: 1e300,
            rif: u32::MAX,
        };
        let found = Answer::decode(&answer.encode()).unwrap();
        assert_eq!(found.again, Duration::from_millis(u64::from(u32::MAX) - 1));
        assert_eq!((found.application_utilization, found.cpu_utilization), (0.0, 0.0));
        assert_eq!((found.rps, found.eps), (4_294_967.295, 4_294_967.295));
        let long = Question { nonce: [0; 16], waited: Some(Duration::MAX) };
        assert!(Question::decode(&long.encode()).unwrap().waited.is_some());
    }
}
