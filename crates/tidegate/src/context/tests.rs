use super::*;

fn account() -> Account {
    let task = Task::builder("test").build().expect("defaults are right");
    Account::with_context(Context::new(task, Criticality::Sheddable, CustomerId::DEFAULT))
}

fn burn() -> u64 {
    (0..200_000_u64).fold(1, |sum, n| core::hint::black_box(sum.rotate_left(7) ^ n))
}

#[test]
fn outside_of_a_request_nothing_is_known() {
    assert!(!is_request());
    assert_eq!(criticality(), Criticality::Critical);
    assert_eq!((deadline(), remaining(), attempt(), degrade()), (None, None, 1, false));
    assert_eq!((customer(), customer_name().is_none()), (CustomerId::DEFAULT, true));
    assert_eq!(cost_so_far(), Cost::from_nanos(0));
    overloaded_below();
    assert!(!is_overloaded_below());
    assert!(task().is_none() && peer().is_none());
}

#[test]
fn an_answer_is_degraded_only_where_somebody_has_heard_that_it_may_be() {
    for degrades in [false, true] {
        let task = Task::builder("test").build().expect("defaults are right");
        let mut context = Context::new(task, Criticality::Sheddable, CustomerId::DEFAULT);
        context.degrade = degrades;
        let account = Account::with_context(context);
        let heard = || account.context::<Context>().is_some_and(Context::has_heard);
        assert!(!heard());
        assert_eq!(account.run(degrade), degrades);
        assert_eq!(heard(), degrades);
    }
}

#[test]
fn what_is_said_nests_and_ends_with_its_future_also_by_a_panic() {
    account().run(|| {
        assert_eq!(criticality(), Criticality::Sheddable);
        saying(Some(Criticality::CriticalPlus), || {
            saying(Some(Criticality::SheddablePlus), || {
                assert_eq!(criticality(), Criticality::SheddablePlus);
            });
            assert_eq!(criticality(), Criticality::CriticalPlus);
            let panics = || saying(None, || std::panic::resume_unwind(Box::new("on purpose")));
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(criticality(), Criticality::CriticalPlus);
            // Of another request inside of this one nothing was said.
            saying(None, || assert_eq!(criticality(), Criticality::Sheddable));
        });
        assert!(set_criticality(Criticality::Critical));
        assert_eq!(criticality(), Criticality::Critical);
    });
}

#[test]
fn a_caller_can_be_asked_from_elsewhere() {
    let account = account();
    let ask = || (Caller::current(), saying(Some(Criticality::CriticalPlus), Caller::current));
    let (caller, louder) = account.run(ask);
    std::thread::spawn(move || {
        assert_eq!(caller.criticality(), Some(Criticality::Sheddable));
        assert_eq!(louder.criticality(), Some(Criticality::CriticalPlus));
        assert_eq!((caller.remaining(), caller.customer_name()), (None, None));
        caller.gave_up();
    })
    .join()
    .unwrap();
    account.run(|| assert!(is_overloaded_below()));
    let nobody = Caller::current();
    nobody.gave_up();
    assert_eq!((nobody.criticality(), nobody.remaining()), (None, None));
}

#[test]
fn the_remaining_time_runs_by_the_clock_of_the_task() {
    let (clock, hand) = crate::clock::Clock::manual();
    let task = Task::builder("test").clock(clock).build().unwrap();
    let mut context = Context::new(task, Criticality::Critical, CustomerId::DEFAULT);
    context.deadline = Some(Timestamp::from_millis(100));
    Account::with_context(context).run(|| {
        for (at, left) in [(0, 100), (40, 60), (100, 0), (1_000, 0)] {
            hand.set(Timestamp::from_millis(at));
            assert_eq!(remaining(), Some(Duration::from_millis(left)));
            assert_eq!(Caller::current().remaining(), remaining());
        }
    });
}

/// Whatever children do when, each nanosecond is settled once: in the request's own settlement or
/// in one that is late.
#[test]
fn settlements_add_up_to_what_was_charged() {
    for _ in 0..50 {
        let account = account();
        let context = account.context::<Context>().unwrap();
        context.spawns();
        let (mut on_time, mut late) = (Duration::ZERO, Duration::ZERO);
        std::thread::scope(|scope| {
            let child = || {
                account.run(burn);
                context.settle_late(&account).unwrap_or_default()
            };
            let children = [scope.spawn(child), scope.spawn(child)];
            account.run(burn);
            on_time = context.settle(&account);
            for child in children {
                late += child.join().unwrap();
            }
        });
        assert_eq!(on_time + late, account.so_far());
    }
}

#[test]
fn a_child_that_ends_in_time_settles_nothing() {
    let account = account();
    let context = account.context::<Context>().unwrap();
    context.spawns();
    account.run(burn);
    assert_eq!(context.settle_late(&account), None);
    assert_eq!(context.settle(&account), account.so_far());
    assert_eq!(context.settle_late(&account), None);
}
