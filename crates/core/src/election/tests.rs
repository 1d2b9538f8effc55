use super::*;

mod world;

const TTL: Duration = Duration::from_secs(3);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn other() -> Holder {
    Holder { name: "other".to_owned(), revision: 7, lease: 70 }
}

fn mine(revision: u64) -> Holder {
    Holder { name: "me".to_owned(), revision, lease: 1 }
}

/// One that has claimed the key at 0 by lease 1, and was seen with it.
fn leader() -> Elector {
    let mut elector = Elector::new(TTL, at(0));
    elector.set_eligible();
    assert_eq!(elector.next(at(0)), Some(Ask::Look));
    assert_eq!(elector.next(at(0)), None, "one at a time");
    elector.seen(None, at(0));
    assert_eq!(elector.next(at(0)), Some(Ask::Grant));
    elector.granted(1, at(0), at(0));
    assert_eq!(elector.next(at(0)), Some(Ask::Claim(1)));
    elector.seen(Some(mine(10)), at(0));
    assert_eq!(elector.next(at(0)), None);
    elector
}

#[test]
fn a_vacant_key_is_claimed_and_leads_for_three_quarters_of_the_lease() {
    let elector = leader();
    assert_eq!(elector.role(at(2_249)), Role::Leads { revision: 10, until: at(2_250) });
    assert_eq!(elector.role(at(2_250)), Role::Suspended { revision: 10 });
    assert_eq!(elector.next_deadline(), Some(at(500)));
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut elector = leader();
    assert_eq!(elector.next(at(499)), None);
    assert_eq!(elector.next(at(500)), Some(Ask::Renew(1)));
    assert_eq!(elector.next(at(600)), None, "one at a time");
    elector.renewed(1, true, at(500), at(1_900));
    assert_eq!(elector.role(at(1_900)), Role::Leads { revision: 10, until: at(2_750) });
    // Of a lease that it no longer has.
    elector.renewed(9, false, at(1_900), at(1_900));
    assert!(matches!(elector.role(at(1_900)), Role::Leads { .. }));
}

#[test]
fn nobody_claims_before_it_may_lead_or_while_somebody_does() {
    let mut elector = Elector::new(TTL, at(0));
    assert_eq!(elector.next(at(0)), Some(Ask::Look));
    elector.seen(None, at(0));
    assert_eq!(elector.next(at(0)), None);
    elector.set_eligible();
    assert_eq!(elector.next(at(0)), Some(Ask::Grant));
    // Somebody else was faster; its lease is not needed any more.
    elector.granted(1, at(0), at(0));
    assert_eq!(elector.next(at(0)), Some(Ask::Claim(1)));
    elector.seen(Some(other()), at(10));
    assert_eq!(elector.role(at(10)), Role::Follows(Some(&other())));
    assert_eq!(elector.next(at(10)), Some(Ask::Revoke(1)));
    assert_eq!(elector.next(at(10)), None);
    assert_eq!(elector.next_deadline(), Some(at(1_010)));
    elector.wake(at(50));
    assert_eq!(elector.next(at(50)), Some(Ask::Look));
}

#[test]
fn a_claim_that_was_not_answered_is_seen_by_the_next_look() {
    let mut elector = Elector::new(TTL, at(0));
    elector.set_eligible();
    let _ = elector.next(at(0));
    elector.seen(None, at(0));
    let _ = elector.next(at(0));
    elector.granted(1, at(0), at(0));
    assert_eq!(elector.next(at(0)), Some(Ask::Claim(1)));
    elector.unanswered(at(100));
    assert_eq!(elector.next(at(100)), None, "after a pause");
    assert_eq!(elector.next(at(350)), Some(Ask::Look));
    elector.seen(Some(mine(12)), at(360));
    assert!(matches!(elector.role(at(360)), Role::Leads { revision: 12, .. }));
}

#[test]
fn a_leader_that_was_held_up_goes_on_only_when_it_has_looked() {
    let mut elector = leader();
    assert_eq!(elector.next(at(500)), Some(Ask::Renew(1)));
    // The answer is from before it was held up, and so is the time from which it counts.
    elector.renewed(1, true, at(500), at(60_000));
    assert_eq!(elector.role(at(60_000)), Role::Suspended { revision: 10 });
    assert_eq!(elector.next(at(60_000)), Some(Ask::Look));
    elector.seen(Some(other()), at(60_001));
    assert_eq!(elector.role(at(60_001)), Role::Follows(Some(&other())));

    let mut elector = leader();
    assert_eq!(elector.next(at(500)), Some(Ask::Renew(1)));
    elector.not_renewed(1, at(1_000));
    assert_eq!(elector.next(at(1_250)), Some(Ask::Renew(1)), "a look is not due before");
    assert_eq!(elector.next(at(1_250)), Some(Ask::Look));
    elector.unanswered(at(1_750));
    elector.not_renewed(1, at(2_400));
    assert_eq!(elector.next(at(2_650)), Some(Ask::Renew(1)));
    elector.renewed(1, true, at(2_650), at(2_700));
    assert_eq!(elector.role(at(2_700)), Role::Suspended { revision: 10 });
    assert_eq!(elector.next(at(2_700)), Some(Ask::Look));
    elector.seen(Some(mine(10)), at(2_710));
    assert!(matches!(elector.role(at(2_710)), Role::Leads { revision: 10, .. }));
}

#[test]
fn a_lease_that_has_ended_and_a_key_that_is_gone_end_the_reign() {
    let mut elector = leader();
    let _ = elector.next(at(500));
    elector.renewed(1, false, at(500), at(510));
    assert!(matches!(elector.role(at(510)), Role::Follows(_)));
    assert_eq!(elector.next(at(510)), Some(Ask::Look));

    let mut elector = leader();
    elector.wake(at(10));
    assert_eq!(elector.next(at(10)), Some(Ask::Look));
    elector.seen(None, at(20));
    assert_eq!(elector.role(at(20)), Role::Follows(None));
    assert_eq!(elector.next(at(20)), Some(Ask::Revoke(1)));
    assert_eq!(elector.next(at(20)), Some(Ask::Grant), "anyone may claim it again");
}

#[test]
fn who_resigns_gives_its_lease_back_and_asks_no_more() {
    let mut elector = leader();
    elector.resign();
    assert!(matches!(elector.role(at(100)), Role::Follows(_)));
    assert_eq!(elector.next(at(100)), Some(Ask::Revoke(1)));
    assert_eq!(elector.next(at(10_000)), None);
    assert_eq!(elector.next_deadline(), None);
    // What was on its way changes nothing.
    elector.seen(Some(mine(10)), at(110));
    elector.granted(2, at(100), at(110));
    assert!(matches!(elector.role(at(110)), Role::Follows(_)));
    assert_eq!(elector.next(at(110)), Some(Ask::Revoke(2)));
}
