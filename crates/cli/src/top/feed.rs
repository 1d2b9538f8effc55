//! Reads the stream on a thread of its own, and comes back to it when it ends.

use super::view::View;
use crate::remote::{Remote, Stream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tidegate::admin::api::Update;

/// As the page does.
const AGAIN: Duration = Duration::from_secs(1);

/// What has come since it was last asked.
#[derive(Debug)]
pub(super) struct Feed {
    updates: Receiver<Option<Box<Update>>>,
}

impl Feed {
    pub(super) fn start(remote: Remote, path: String, stream: Stream) -> Self {
        let (sender, updates) = channel();
        std::thread::spawn(move || {
            let mut stream = Some(stream);
            while read(stream.as_mut(), &sender) {
                std::thread::sleep(AGAIN);
                stream = remote.stream(&path).ok();
            }
        });
        Self { updates }
    }

    /// Gives `view` what has come.
    pub(super) fn read(&self, view: &mut View) {
        for update in self.updates.try_iter() {
            match update {
                Some(update) => view.take(*update),
                None => view.away = true,
            }
        }
    }
}

/// Hands on what a stream says, and that it has ended. False once nobody listens.
fn read(stream: Option<&mut Stream>, sender: &Sender<Option<Box<Update>>>) -> bool {
    if let Some(stream) = stream {
        while let Some(data) = stream.next() {
            if let Ok(update) = serde_json::from_str(&data)
                && sender.send(Some(update)).is_err()
            {
                return false;
            }
        }
    }
    sender.send(None).is_ok()
}
