use super::*;
use crate::account::Account;
use proptest::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Time that passes when it is told to.
#[derive(Debug, Default)]
struct Fake {
    now: Cell<u64>,
    since: Cell<u64>,
    charged: Cell<u64>,
}

impl Host for Fake {
    fn begin(&self) {
        self.since.set(self.now.get());
    }

    fn lap(&self) -> u64 {
        self.now.get() - self.since.replace(self.now.get())
    }

    fn charged(&self, nanos: u64) {
        self.charged.set(self.charged.get() + nanos);
    }
}

impl Ledger<Fake> {
    fn fake() -> Self {
        Self::new(Fake::default())
    }

    fn pass(&self, nanos: u64) {
        self.host.now.set(self.host.now.get() + nanos);
    }

    fn pays(&self, account: &Account) -> bool {
        self.current.with(|payer| payer.is_some_and(|payer| payer.account.is(account)))
    }
}

#[test]
fn the_inner_time_is_not_the_outer_time() {
    let ledger = Ledger::fake();
    let (outer, inner) = (Account::new(), Account::new());
    ledger.pass(1_000);
    outer.scope().run_on(&ledger, || {
        ledger.pass(100);
        inner.scope().run_on(&ledger, || {
            assert!(ledger.pays(&inner));
            ledger.pass(10);
        });
        assert!(ledger.pays(&outer));
        ledger.pass(1);
    });
    ledger.pass(1_000);
    assert!(ledger.current.is_nobody());
    assert_eq!((outer.charged(), inner.charged()), (101, 10));
    assert_eq!(ledger.host.charged.get(), 111);
}

#[test]
fn everything_but_the_running_piece_is_always_there() {
    let ledger = Ledger::fake();
    let (outer, inner) = (Account::new(), Account::new());
    outer.scope().run_on(&ledger, || {
        ledger.pass(100);
        inner.scope().run_on(&ledger, || {
            ledger.pass(10);
            assert_eq!(outer.charged(), 100);
            assert_eq!(inner.charged(), 0);
            ledger.cut();
            assert_eq!(inner.charged(), 10);
            ledger.cut();
            assert_eq!(inner.charged(), 10, "once");
        });
    });
    ledger.cut();
    assert_eq!(outer.charged(), 100);
}

#[test]
fn a_panic_is_charged_and_leaves_the_outer_scope_as_it_was() {
    let ledger = Ledger::fake();
    let (outer, inner) = (Account::new(), Account::new());
    outer.scope().run_on(&ledger, || {
        ledger.pass(100);
        let mut scope = inner.scope();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            scope.run_on(&ledger, || {
                ledger.pass(10);
                resume_unwind(Box::new("told to"));
            });
        }));
        assert!(panicked.is_err());
        assert!(ledger.pays(&outer));
        ledger.pass(1);
        scope.run_on(&ledger, || ledger.pass(20));
    });
    assert_eq!((outer.charged(), inner.charged()), (101, 30));
    assert!(ledger.current.is_nobody());
}

#[test]
fn an_account_inside_itself_is_charged_once() {
    let ledger = Ledger::fake();
    let account = Account::new();
    account.scope().run_on(&ledger, || {
        ledger.pass(100);
        account.scope().run_on(&ledger, || ledger.pass(10));
        ledger.pass(1);
    });
    assert_eq!(account.charged(), 111);
}

const ACCOUNTS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Work(u64),
    /// Everything up to now is charged.
    Cut,
    Scope {
        account: usize,
        panics: bool,
        steps: Vec<Step>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![4 => (0_u64..10_000).prop_map(Step::Work), 1 => Just(Step::Cut)];
    let step = leaf.prop_recursive(5, 60, 6, |inner| {
        (0..ACCOUNTS, prop::bool::weighted(0.2), prop::collection::vec(inner, 0..6))
            .prop_map(|(account, panics, steps)| Step::Scope { account, panics, steps })
    });
    prop::collection::vec(step, 0..6)
}

/// Who ought to pay what, by recursion.
fn expected(steps: &[Step], payer: Option<usize>, sums: &mut [u64; ACCOUNTS]) {
    for step in steps {
        match step {
            Step::Work(nanos) => {
                if let Some(payer) = payer {
                    sums[payer] += nanos;
                }
            }
            Step::Cut => {}
            Step::Scope { account, steps, .. } => expected(steps, Some(*account), sums),
        }
    }
}

fn play(steps: &[Step], ledger: &Ledger<Fake>, accounts: &[Account; ACCOUNTS]) {
    for step in steps {
        match step {
            Step::Work(nanos) => ledger.pass(*nanos),
            Step::Cut => ledger.cut(),
            Step::Scope { account, panics, steps } => {
                // The outermost scope of an account has the counter for one.
                let mut scope = accounts[*account].scope();
                let result = catch_unwind(AssertUnwindSafe(|| {
                    scope.run_on(ledger, || {
                        play(steps, ledger, accounts);
                        assert!(ledger.pays(&accounts[*account]));
                        if *panics {
                            resume_unwind(Box::new("told to"));
                        }
                    });
                }));
                if let Err(panic) = result
                    && panic.downcast_ref() != Some(&"told to")
                {
                    resume_unwind(panic);
                }
            }
        }
    }
}

proptest! {
    /// Each account gets its own time and nobody else's, whatever nests and panics; and all of
    /// them together get what passed inside of scopes.
    #[test]
    fn nothing_twice_and_nothing_lost(steps in steps()) {
        let ledger = Ledger::fake();
        let accounts = [(); ACCOUNTS].map(|()| Account::new());
        play(&steps, &ledger, &accounts);
        let mut sums = [0; ACCOUNTS];
        expected(&steps, None, &mut sums);
        prop_assert_eq!(accounts.each_ref().map(Account::charged), sums);
        prop_assert_eq!(ledger.host.charged.get(), sums.iter().sum::<u64>());
        prop_assert!(ledger.current.is_nobody());
    }
}
