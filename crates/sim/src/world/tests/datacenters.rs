//! Datacenters that fill up, slow down and go.

use super::*;

/// Three datacenters of four cores each, 1, 10 and 20 ms away. The nearest one's clients ask for
/// `load` times what one datacenter can do.
fn three(load: f64, secs: u64) -> WorldSpec {
    let mut of = service(12, true);
    for (index, task) in of.tasks.iter_mut().enumerate() {
        task.datacenter = index / 4;
    }
    of.work = WorkSpec::Constant(WORK);
    of.spillover = Some(SpilloverSpec::default());
    let stack = StackSpec {
        balance: BalanceSpec::LeastLoaded(LeastLoadedConfig::default()),
        retries: RetrySpec::Advised { attempts: 3 },
        ..StackSpec::default()
    };
    let mut spec = world(vec![of], load / 3.0, stack, secs);
    let ms = |row: [u64; 3]| row.map(Duration::from_millis).to_vec();
    spec.distance = vec![ms([1, 10, 20]), ms([10, 1, 20]), ms([20, 20, 1])];
    spec
}

/// Shares of the requests that went to each datacenter between two seconds.
fn shares(record: &Record, from: usize, to: usize) -> [f64; 3] {
    let sums: Vec<f64> = (0..3)
        .map(|place| {
            let column = &record.sent_to[0][place];
            (from..to).map(|s| f64::from(column.get(s).copied().unwrap_or(0))).sum()
        })
        .collect();
    let all: f64 = sums.iter().sum();
    core::array::from_fn(|place| sums[place] / all)
}

#[test]
fn the_nearest_fills_first_and_the_rest_spills() {
    // 1.2 datacenters' worth: 0.9 in the nearest, that is three quarters, the rest in the next.
    let record = run(three(1.2, 30));
    let [near, next, far] = shares(&record, 5, 30);
    assert!(
        (near - 0.75).abs() < 0.03 && (next - 0.25).abs() < 0.03 && far < 0.01,
        "{near} {next}"
    );
    assert!(sum(&record, |bin| bin.answers) / offered(&record) > 0.99);
    let calm = run(three(0.6, 10));
    assert_eq!(shares(&calm, 0, 10)[0], 1.0);
}

#[test]
fn a_lost_datacenter_is_left_within_a_plan_and_comes_back_slowly() {
    let mut spec = three(0.6, 60);
    spec.changes = vec![
        (Timestamp::from_millis(10_500), Change::Datacenter { datacenter: 0, lost: true }),
        (Timestamp::from_millis(20_500), Change::Datacenter { datacenter: 0, lost: false }),
    ];
    let record = run(spec);
    assert_eq!(shares(&record, 12, 20), [0.0, 1.0, 0.0]);
    // 5 % a second come back: about half after ten seconds, all after twenty.
    let back = shares(&record, 30, 32)[0];
    assert!((0.4..0.65).contains(&back), "{back}");
    assert!(shares(&record, 45, 60)[0] > 0.999);
    // Half a second of requests fails, three attempts each, until the plan is made.
    let lost = offered(&record) - sum(&record, |bin| bin.answers);
    let rate = 0.6 * 4.0 / WORK.as_secs_f64();
    assert!((0.3 * rate..0.7 * rate).contains(&lost), "{lost}");
}

#[test]
fn a_datacenter_at_half_speed_gets_half() {
    let mut spec = three(0.9, 40);
    spec.changes =
        vec![(Timestamp::from_secs(10), Change::DatacenterSpeed { datacenter: 0, factor: 0.5 })];
    let record = run(spec);
    // 0.45 of the 0.9 that are asked for, in reference CPU.
    let [near, next, _] = shares(&record, 20, 40);
    assert!((near - 0.5).abs() < 0.03 && (next - 0.5).abs() < 0.03, "{near} {next}");
}

#[test]
fn what_fits_nowhere_is_refused_at_the_source() {
    // 3.6 datacenters' worth where 2.7 are planned for: a quarter.
    let record = run(three(3.6, 20));
    let unplaced = sum(&record, |bin| bin.unplaced) / offered(&record);
    assert!((unplaced - 0.25).abs() < 0.03, "{unplaced}");
    assert_eq!(sum(&record, |bin| bin.throttled), 0.0);
}

#[test]
fn groups_in_one_place_share_its_room() {
    let mut spec = three(3.6, 20);
    spec.clients[0].rate /= 2.0;
    spec.clients.push(spec.clients[0].clone());
    let record = run(spec);
    for (group, bins) in record.clients.iter().enumerate() {
        let unplaced: u32 = bins.iter().map(|bin| bin.unplaced).sum();
        let asked: u32 = bins.iter().map(|bin| bin.offered.iter().sum::<u32>()).sum();
        let share = f64::from(unplaced) / f64::from(asked);
        assert!((share - 0.25).abs() < 0.03, "{group}: {share}");
    }
}
