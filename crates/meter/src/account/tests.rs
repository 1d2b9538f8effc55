use super::*;
use crate::Totals;
use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn pays(account: &Account) -> bool {
    with_current(|current| current.is_some_and(|current| current.is(account)))
}

/// Works until the account has seen it.
fn work_until_charged(account: &Account) {
    let before = account.so_far();
    while account.so_far() == before {}
}

#[test]
fn the_context_comes_back_by_its_type() {
    let account = Account::with_context(7_u32);
    assert_eq!(account.context::<u32>(), Some(&7));
    assert_eq!(account.context::<u64>(), None);
    assert_eq!(account.clone().context::<u32>(), Some(&7));
    assert_eq!(Account::new().context::<()>(), Some(&()));
}

#[test]
fn the_current_account_is_the_innermost() {
    let (outer, inner) = (Account::new(), Account::new());
    assert!(current().is_none());
    outer.run(|| {
        assert!(pays(&outer));
        let inherited = current().unwrap();
        assert!(inherited.is(&outer) && !inherited.is(&inner));
        inner.run(|| assert!(pays(&inner)));
        assert!(pays(&outer));
        let panicked = catch_unwind(AssertUnwindSafe(|| inner.run(|| resume_unwind(Box::new(())))));
        assert!(panicked.is_err());
        assert!(pays(&outer));
    });
    assert!(current().is_none());
}

#[test]
fn what_is_asked_for_may_be_left_and_entered_while_asking() {
    let (outer, inner) = (Account::new(), Account::new());
    outer.run(|| {
        with_current(|account| {
            inner.run(|| assert!(pays(&inner)));
            assert!(account.unwrap().is(&outer));
        });
    });
}

#[test]
fn what_runs_is_part_of_what_was_so_far() {
    let account = Account::new();
    account.run(|| {
        work_until_charged(&account);
        let so_far = account.so_far();
        std::thread::scope(|threads| {
            // From elsewhere one sees what was charged, and has nothing running.
            threads.spawn(|| assert!(account.so_far() >= so_far));
        });
        Account::new().run(|| assert!(account.so_far() >= so_far, "from an inner scope too"));
    });
}

#[test]
fn an_account_is_the_same_on_all_threads() {
    let account = Account::with_context("request");
    let before = Totals::now().attributed;
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                account.run(|| {
                    assert_eq!(current().unwrap().context::<&str>(), Some(&"request"));
                    work_until_charged(&account);
                });
            });
        }
    });
    let passed = Totals::now().attributed.saturating_sub(before);
    assert!(passed >= account.so_far(), "{passed:?} {account:?}");
}

#[test]
fn one_scope_at_a_time_has_the_counter_for_one() {
    let account = Account::new();
    let first = account.scope();
    let second = account.scope();
    assert!(first.alone && !second.alone);
    drop(second);
    assert!(!account.scope().alone, "the first still has it");
    drop(first);
    let third = account.scope();
    assert!(third.alone);
    // A scope may end on another thread than it ran on.
    std::thread::spawn(move || drop(third)).join().unwrap();
    assert!(account.scope().alone);
}

#[test]
fn a_scope_that_moves_between_threads_loses_nothing() {
    let account = Account::new();
    let mut scope = account.scope();
    for _ in 0..100 {
        scope = std::thread::spawn(move || {
            LEDGER.with(|_| scope.account.charge(3, scope.alone));
            scope
        })
        .join()
        .unwrap();
    }
    assert_eq!(account.charged(), 300);
}

/// Says which account was current when it was dropped.
struct Witness<'a>(&'a RefCell<Vec<Option<Account>>>);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().push(current());
    }
}

#[test]
fn a_future_is_polled_and_dropped_in_its_scope() {
    let seen = RefCell::new(Vec::new());
    let account = Account::new();
    {
        let witness = Witness(&seen);
        let mut polls = 0;
        let mut future = pin!(account.meter(poll_fn(|_| {
            let _ = &witness;
            assert!(pays(&account));
            polls += 1;
            if polls == 3 { Poll::Ready(polls) } else { Poll::Pending }
        })));
        assert!(poll_once(future.as_mut()).is_pending());
        assert!(current().is_none());
        assert!(poll_once(future.as_mut()).is_pending());
        assert_eq!(poll_once(future.as_mut()), Poll::Ready(3));
    }
    seen.borrow_mut().clear();
    // When it is ready, and when it is given up.
    let witness = Witness(&seen);
    let mut ready = Box::pin(account.meter(async move { drop(witness) }));
    assert!(poll_once(ready.as_mut()).is_ready());
    let witness = Witness(&seen);
    let mut never = Box::pin(account.meter(async move {
        let _witness = witness;
        pending::<()>().await;
    }));
    assert!(poll_once(never.as_mut()).is_pending());
    drop(never);
    let seen = seen.borrow();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|current| current.as_ref().is_some_and(|c| c.is(&account))));
    assert!(current().is_none());
}

#[test]
fn what_a_ready_future_leaves_is_dropped_at_once() {
    let seen = RefCell::new(Vec::new());
    let account = Account::new();
    let witness = Witness(&seen);
    let mut future = Box::pin(account.meter(poll_fn(move |_| {
        let _ = &witness;
        Poll::Ready(())
    })));
    assert!(poll_once(future.as_mut()).is_ready());
    assert!(seen.borrow()[0].as_ref().is_some_and(|current| current.is(&account)));
    drop(future);
    assert_eq!(seen.borrow().len(), 1);
}

#[test]
fn a_future_that_panics_leaves_its_scope() {
    let account = Account::new();
    let mut future = Box::pin(account.meter(poll_fn(|_| -> Poll<()> {
        work_until_charged(&account);
        resume_unwind(Box::new(()))
    })));
    let panicked = catch_unwind(AssertUnwindSafe(|| poll_once(future.as_mut())));
    assert!(panicked.is_err());
    assert!(current().is_none());
    assert!(!account.so_far().is_zero());
    drop(future);
    assert!(current().is_none());
}

#[test]
fn futures_of_one_request_in_each_other() {
    let account = Account::new();
    let other = Account::new();
    let inner = other.meter(async {
        assert!(pays(&other));
        work_until_charged(&other);
    });
    let mut outer = pin!(account.meter(async {
        account.meter(async { assert!(pays(&account)) }).await;
        inner.await;
        assert!(pays(&account));
    }));
    assert!(poll_once(outer.as_mut()).is_ready());
    assert!(current().is_none());
}
