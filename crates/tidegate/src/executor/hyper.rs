//! hyper spawns through us.

use super::Executor;
use core::future::Future;

/// Spawns on the runtime of the caller, counted: for `hyper::server::conn::http2::Builder` and
/// hyper-util's `auto::Builder`.
impl<F> ::hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.spawn(future));
    }
}
