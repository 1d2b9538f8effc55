//! A future that is charged for each of its polls.

use crate::account::{Account, Scope};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project_lite::pin_project! {
    /// A future each poll of which is charged to an account. See [`Account::meter`].
    ///
    /// What the future leaves behind is dropped at the account's cost, too: when it is ready, or
    /// when it is given up.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Metered<F> {
        #[pin]
        future: Option<F>,
        scope: Scope,
    }

    impl<F> PinnedDrop for Metered<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.future.is_some() {
                this.scope.run(|| this.future.set(None));
            }
        }
    }
}

impl<F> Metered<F> {
    /// `future`, charged through `scope`.
    pub fn new(future: F, scope: Scope) -> Self {
        Self { future: Some(future), scope }
    }

    /// The account that pays.
    pub fn account(&self) -> &Account {
        self.scope.account()
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    /// Panics if it is polled again after it was ready.
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let Some(mut future) = this.future.as_mut().as_pin_mut() else { polled_again() };
        let poll = this.scope.run(|| future.as_mut().poll(context));
        if poll.is_ready() {
            // In a scope of its own: a second one for the last poll makes all others a nanosecond
            // cheaper.
            this.scope.run(|| this.future.set(None));
        }
        poll
    }
}

#[cold]
fn polled_again() -> ! {
    panic!("polled after it was ready")
}
