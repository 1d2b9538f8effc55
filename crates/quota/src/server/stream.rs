//! The streams of a service's tasks: what each is about to be told.
//!
//! Reports that were not seen yet wait in a line, in the order in which they came, which is that in
//! which they are seen: [`Answer::due`](tidegate_core::fleet::Answer). A stream stands there once
//! at most, whatever its task sends.

use crate::message::{lines, write_directory, write_grant};
use bytes::{BufMut as _, Bytes, BytesMut};
use core::ops::Range;
use prost::Message as _;
use std::collections::{BTreeSet, VecDeque};
use tidegate_core::Timestamp;
use tidegate_core::fleet::{Change, Fleet, Generation, TaskId};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};
use tokio::sync::mpsc;
use tonic::Status;

/// Messages for one task that were not sent yet: a second's worth. Who is further behind than that
/// is better off with a new stream.
pub(crate) const BACKLOG: usize = 8;

/// What a task is told, or why it is told nothing more. In a box, as channels keep room for many.
pub(crate) type Words = Result<Box<ServerMessage>, Status>;
pub(crate) type Out = mpsc::Sender<Words>;

/// Which stream of which task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub(super) task: TaskId,
    serial: u64,
}

/// What a task said, as far as it makes sense by itself.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Checked: [`lines`] finds what it needs.
    pub(crate) report: Option<wire::Usages>,
    pub(crate) acked: Option<Generation>,
    pub(crate) leaves: bool,
}

/// How tasks are told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Telling {
    pub(super) learning: bool,
    /// Only those that have reported, and those that have yet to.
    pub(super) saves: bool,
}

/// A report that was not seen yet.
#[derive(Debug, Clone, Copy)]
struct Unseen {
    number: u64,
    /// When it will have been.
    due: u64,
}

/// Customers that are gone, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Gone {
    numbers: BTreeSet<u32>,
    /// A directory that they were struck off, and what is left of it. All streams have the same
    /// one to say, unless some have just begun.
    struck: Option<(Bytes, Bytes)>,
}

impl Gone {
    pub(super) fn insert(&mut self, number: u32) {
        self.numbers.insert(number);
    }

    /// What is left of a directory.
    fn strike(&mut self, directory: &Bytes) -> Bytes {
        let is_same = |before: &Bytes| {
            core::ptr::eq(before.as_ptr(), directory.as_ptr()) && before.len() == directory.len()
        };
        if let Some((before, after)) = &self.struck
            && is_same(before)
        {
            return after.clone();
        }
        // It was written here.
        let mut left = wire::Directory::decode(directory.clone()).unwrap_or_default().customers;
        left.retain(|customer| !self.numbers.contains(&customer.number));
        let after = write_directory(left);
        self.struck = Some((directory.clone(), after.clone()));
        after
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    out: Out,
    /// The last report that came.
    number: u64,
    /// The last that was seen, and the last that was answered.
    seen: u64,
    answered: u64,
    /// One that is in the line, and the last that came after it.
    first: Option<Unseen>,
    later: Option<Unseen>,
    /// What else to say.
    next: Option<Box<ServerMessage>>,
}

impl Stream {
    /// What to say next.
    pub(super) fn next(&mut self) -> &mut ServerMessage {
        self.next.get_or_insert_default()
    }

    pub(super) fn grant(&mut self, change: &Change) {
        let grants = self.next().grants.get_or_insert_default();
        grants.number = grants.number.max(change.generation.number);
        if change.revoked {
            grants.revoked.push(change.customer.0);
        } else {
            write_grant(grants, change.customer, change.limits);
        }
    }

    /// Some customers are new, or have other limits. Directories that follow each other are one.
    pub(super) fn introduce(&mut self, customers: &Bytes) {
        if customers.is_empty() {
            return;
        }
        let directory = &mut self.next().directory;
        if directory.is_empty() {
            directory.clone_from(customers);
        } else {
            let mut both = BytesMut::with_capacity(directory.len() + customers.len());
            both.put_slice(directory);
            both.put_slice(customers);
            *directory = both.freeze();
        }
    }

    /// Some customers are gone. Whatever it was to be told of them is, too: a task strikes them off
    /// before it reads who is new.
    pub(super) fn retire(&mut self, gone: &mut Gone) {
        if gone.numbers.is_empty() {
            return;
        }
        let next = self.next();
        next.gone.extend(&gone.numbers);
        if !next.directory.is_empty() {
            next.directory = gone.strike(&next.directory);
        }
    }

    /// Ends it with what is wrong.
    pub(super) fn end(&self, status: Status) {
        // One that does not read does not learn why, either.
        let _ = self.out.try_send(Err(status));
    }

    /// Takes in what the task said. Returns when that will have been seen, if the stream has to
    /// stand in line for it.
    fn take(
        &mut self,
        fleet: &mut Fleet,
        said: &Said,
        now: Timestamp,
    ) -> Result<Option<u64>, Status> {
        let task = self.id.task;
        if let Some(report) = &said.report {
            if report.number <= self.number {
                return Err(Status::invalid_argument(format!(
                    "report {} came after report {}: numbers have to rise",
                    report.number, self.number
                )));
            }
            self.number = report.number;
            let answer = fleet.report(task, said.acked, lines(report), now);
            let answer = answer.map_err(|_| not_joined())?;
            if !answer.renewed {
                return Err(Status::deadline_exceeded(
                    "grants were not acknowledged for too long: open a new stream",
                ));
            }
            let unseen = Some(Unseen { number: report.number, due: answer.due });
            if self.first.is_none() {
                self.first = unseen;
                return Ok(Some(answer.due));
            }
            self.later = unseen;
        } else if let Some(acked) = said.acked {
            fleet.acknowledge(task, acked, now).map_err(|_| not_joined())?;
        }
        Ok(None)
    }

    /// It is the stream's turn. Returns when it is again, if it has to stand in line once more.
    fn look(&mut self, divided: u64) -> Option<u64> {
        for unseen in [self.first.take(), self.later.take()].into_iter().flatten() {
            if unseen.due > divided {
                self.first = Some(unseen);
                return Some(unseen.due);
            }
            self.seen = unseen.number;
        }
        None
    }

    /// Whether there is something to say.
    const fn has_to_tell(&self, how: Telling) -> bool {
        // Who takes another's place reports when it was told what that one had.
        let saves = how.saves && self.number > 0;
        self.seen > self.answered || (self.next.is_some() && !saves)
    }

    /// Sends what there is to say, if anything. Returns whether the task still listens.
    fn tell(&mut self, how: Telling) -> bool {
        if !self.has_to_tell(how) {
            return !self.out.is_closed();
        }
        self.answered = self.seen;
        let mut message = self.next.take().unwrap_or_default();
        (message.answers, message.learning) = (self.seen, how.learning);
        message.acknowledge = !how.saves;
        self.out.try_send(Ok(message)).is_ok()
    }
}

fn not_joined() -> Status {
    Status::aborted(
        "the task is not known any more, or another process has joined by its name: open a new \
         stream; if this happens again and again, two tasks have one name",
    )
}

/// All streams, at the slots of their tasks.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Option<Stream>>,
    /// Those with a report that was not seen yet, and when it will have been; the first is the
    /// first to be. One that is gone is passed over.
    line: VecDeque<(u64, StreamId)>,
    serials: u64,
    count: usize,
}

impl Streams {
    /// A task opened a stream, and is welcome. One that it had before has ended.
    pub(super) fn open(
        &mut self,
        task: TaskId,
        out: Out,
        welcome: ServerMessage,
        learning: bool,
    ) -> StreamId {
        self.serials += 1;
        let id = StreamId { task, serial: self.serials };
        let next = Some(Box::new(welcome));
        let (number, seen, answered) = (0, 0, 0);
        let (first, later) = (None, None);
        let mut stream = Stream { id, out, number, seen, answered, first, later, next };
        let slot = task.slot();
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        // The channel is new and so has room.
        if stream.tell(Telling { learning, saves: false }) {
            match self.slots[slot].replace(stream) {
                // The task that had the slot before is not known any more.
                Some(other) if other.id.task != task => other.end(not_joined()),
                Some(_) => {}
                None => self.count += 1,
            }
        }
        id
    }

    pub(super) fn close(&mut self, id: StreamId) {
        if self.get(id).is_some() {
            self.slots[id.task.slot()] = None;
            self.count -= 1;
        }
    }

    /// Takes in what a task said. What makes no sense ends its stream, with what is wrong. Returns
    /// whether there is one.
    pub(super) fn take(
        &mut self,
        id: StreamId,
        fleet: &mut Fleet,
        said: &Said,
        now: Timestamp,
    ) -> bool {
        // One that was replaced by a newer stream of the same task has nothing more to say.
        let Some(stream) = self.get(id) else { return false };
        match stream.take(fleet, said, now) {
            Ok(due) => self.line.extend(due.map(|due| (due, id))),
            Err(status) => {
                stream.end(status);
                self.close(id);
            }
        }
        true
    }

    /// Whose report was the next to be seen, and has been by now.
    fn look(&mut self, divided: u64) -> Option<StreamId> {
        let &(due, id) = self.line.front()?;
        if due > divided {
            return None;
        }
        self.line.pop_front();
        // Behind those who came in the meantime: it waits for them, at most as long again.
        let again = self.get(id).and_then(|stream| stream.look(divided));
        self.line.extend(again.map(|due| (due, id)));
        Some(id)
    }

    /// Notes whose reports were seen by now.
    pub(super) fn look_all(&mut self, divided: u64) {
        while self.look(divided).is_some() {}
    }

    /// Answers whoever's report was seen by now, in the order in which they came, `max` at most.
    pub(super) fn answer(&mut self, divided: u64, max: usize, how: Telling) {
        for _ in 0..max {
            let Some(id) = self.look(divided) else { return };
            if self.get(id).is_some_and(|stream| !stream.tell(how)) {
                self.close(id);
            }
        }
    }

    pub(super) fn get(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.slots.get_mut(id.task.slot())?.as_mut().filter(|stream| stream.id == id)
    }

    pub(super) fn of(&mut self, task: TaskId) -> Option<&mut Stream> {
        self.slots.get_mut(task.slot())?.as_mut().filter(|stream| stream.id.task == task)
    }

    pub(super) fn each(&mut self, visit: impl FnMut(&mut Stream)) {
        self.slots.iter_mut().flatten().for_each(visit);
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// How many places there are for them.
    pub(super) const fn places(&self) -> usize {
        self.slots.len()
    }

    /// Tells the tasks at these places what there is to say, `max` of them at most; who does not
    /// listen loses its stream. Returns where to go on.
    pub(super) fn tell(&mut self, places: Range<usize>, max: usize, how: Telling) -> usize {
        let end = places.end.min(self.slots.len());
        let mut told = 0;
        for place in places.start..end {
            if told == max {
                return place;
            }
            let slot = &mut self.slots[place];
            let Some(stream) = slot else { continue };
            told += usize::from(stream.has_to_tell(how));
            if !stream.tell(how) {
                *slot = None;
                self.count -= 1;
            }
        }
        end
    }
}
