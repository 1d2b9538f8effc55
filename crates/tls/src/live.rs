//! What was made of files, and is made anew when they change.
//!
//! The bytes are compared, not the dates: a copy may keep its date, and a link may point elsewhere.
//! Certificate and key are two files, so between two renames they do not fit. What is wrong is
//! therefore said when it is seen for the second time, and said once.

use crate::error::InvalidTls;
use crate::pem::{Part, Pem};
use arc_swap::ArcSwap;
use core::time::Duration;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a look at the files has found.
#[derive(Debug)]
#[non_exhaustive]
pub enum News {
    /// They have changed, and count from now on.
    Renewed,
    /// They have changed, and are wrong. The old ones stay.
    Refused(InvalidTls),
}

/// Something that is made of PEM.
pub(crate) trait Recipe: Send + Sync + 'static {
    type Made: Send + Sync + 'static;

    fn parts(&self) -> Vec<(Part, Pem)>;

    /// From the bytes of `parts`, in their order.
    fn make(&self, read: &[Vec<u8>]) -> Result<Self::Made, InvalidTls>;
}

#[derive(Debug)]
pub(crate) struct Live<R: Recipe> {
    recipe: R,
    current: ArcSwap<R::Made>,
    hasher: RandomState,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Looked {
    /// What is in use.
    used: u64,
    /// What was wrong at the last look, and whether it was said.
    wrong: Option<(String, bool)>,
}

impl<R: Recipe> Live<R> {
    pub(crate) fn new(recipe: R) -> Result<Self, InvalidTls> {
        let read = read(&recipe)?;
        let hasher = RandomState::new();
        let looked = Looked { used: hasher.hash_one(&read), wrong: None };
        let current = ArcSwap::from_pointee(recipe.make(&read)?);
        Ok(Self { recipe, current, hasher, looked: Mutex::new(looked) })
    }

    pub(crate) fn current(&self) -> Arc<R::Made> {
        self.current.load_full()
    }

    pub(crate) const fn recipe(&self) -> &R {
        &self.recipe
    }

    /// Reads everything again; whether it has changed.
    pub(crate) fn reload(&self) -> Result<bool, InvalidTls> {
        let read = read(&self.recipe)?;
        let hash = self.hasher.hash_one(&read);
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if hash == looked.used {
            return Ok(false);
        }
        self.current.store(Arc::new(self.recipe.make(&read)?));
        looked.used = hash;
        Ok(true)
    }

    /// The same for whoever looks again and again.
    pub(crate) fn look(&self) -> Option<News> {
        let found = self.reload();
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match found {
            Ok(changed) => {
                looked.wrong = None;
                return changed.then_some(News::Renewed);
            }
            Err(error) => error,
        };
        let words = error.to_string();
        match &mut looked.wrong {
            Some((before, said)) if *before == words => {
                (!core::mem::replace(said, true)).then_some(News::Refused(error))
            }
            other => {
                *other = Some((words, false));
                None
            }
        }
    }
}

fn read(recipe: &impl Recipe) -> Result<Vec<Vec<u8>>, InvalidTls> {
    recipe.parts().into_iter().map(|(part, pem)| pem.read(part)).collect()
}

/// Looks every `period`, on a thread of its own, for as long as anybody uses it.
pub(crate) fn watch<R: Recipe>(
    live: &Arc<Live<R>>,
    period: Duration,
    tell: impl Fn(News) + Send + 'static,
) -> std::io::Result<()> {
    let live: Weak<Live<R>> = Arc::downgrade(live);
    let thread = std::thread::Builder::new().name("tidegate-tls".to_owned());
    thread.spawn(move || {
        loop {
            std::thread::sleep(period);
            let Some(live) = live.upgrade() else { return };
            if let Some(news) = live.look() {
                tell(news);
            }
        }
    })?;
    Ok(())
}
