//! A whole cluster in one process: engines and clients as they are, on simulated network and disks, in virtual time.
//!
//! Each seed draws crashes with torn and lost writes, restarts, partitions, message loss and clock skew while clients
//! write, read and remove keys. Afterwards everything is brought back, every key is read once more, and each key's
//! history must be linearizable: no acknowledged write may be lost, no value may come back from the dead.
//!
//! `WEIR_SIM_SEED=<n>` runs one seed; `WEIR_SIM_SEEDS=<n>` sets how many are run (from 1 on, or from `WEIR_SIM_FROM=<n>` on; then all are
//! run, whatever fails).

mod absent;
mod cluster;
mod costs;
mod devices;
mod faults;
mod full;
mod groups;
mod growing;
mod handles;
mod heirs;
mod history;
mod kept;
mod learning;
mod lists;
mod many;
mod maps;
mod members;
mod moving;
mod pacing;
mod quotas;
mod rebuild;
mod replicas;
mod saturation;
mod seeds;
mod services;
mod snapshots;
mod successors;
mod tenants;
mod transactions;
mod workload;

use std::cell::Cell;
use std::time::Duration;

use cluster::{Cluster, Shape};
use seeds::{for_each_of_all, for_each_seed};
use weir_object::PlantedBug;
use workload::Mix;

/// Seeds by default: about half a minute on one core without optimisation.
const SEEDS: u64 = 300;

/// Where the seeds of `histories` begin, above those of the other tests.
const HISTORIES: u64 = 1_000_000;

/// Runs a test on clusters of this shape with a pool `tank`, from as many seeds.
fn for_each_pool(seeds: u64, shape: Shape, test: impl Fn(&Cluster)) {
    for_each_seed(seeds, |seed| {
        let cluster = Cluster::start(seed, shape);
        cluster.create_pool("tank");
        test(&cluster);
    });
}

#[test]
fn acknowledged_writes_survive_crashes_and_histories_are_linearizable() {
    for_each_pool(SEEDS, Shape { engines: 3, targets: 2, clients: 3 }, |cluster| {
        let run = workload::start(cluster, "tank", Mix::All);
        faults::inject(cluster, &run);
        faults::bring_back(cluster);
        let history = run.finish(cluster);
        history.check(cluster.world.seed());
    });
}

#[test]
fn the_list_of_pools_outlives_any_engine() {
    for_each_seed(SEEDS / 10, lists::any_engine_is_away);
    for_each_seed(SEEDS / 30, lists::every_engine_loses_all);
    for_each_seed(SEEDS / 30, lists::the_only_keeper_loses_all);
}

#[test]
fn conditional_operations_have_one_winner_whoever_misses_requests_and_replies() {
    for_each_pool(SEEDS / 5, Shape { engines: 2, targets: 1, clients: 3 }, |cluster| {
        faults::lose_messages(cluster);
        let run = workload::start(cluster, "tank", Mix::Conditional);
        faults::inject(cluster, &run);
        faults::bring_back(cluster);
        run.finish(cluster).check(cluster.world.seed());
    });
}

#[test]
fn replicated_writes_survive_the_loss_of_an_engine_and_histories_are_linearizable() {
    for (seeds, mix) in [(SEEDS / 3, Mix::All), (SEEDS / 6, Mix::Conditional)] {
        for_each_pool(seeds, replicas::SHAPE, |cluster| {
            replicas::lose_an_engine(cluster, mix).check(cluster.world.seed());
        });
    }
}

#[test]
fn histories_show_forwards_that_are_lost_reads_of_what_others_do_not_have_and_changes_that_are_made_twice() {
    for bug in [PlantedBug::LostForward, PlantedBug::NewThenOld, PlantedBug::DoubleAnswer] {
        let shows = |seed: u64| {
            let cluster = Cluster::start(seed, replicas::SHAPE);
            cluster.create_pool("tank");
            replicas::shows(&cluster, bug)
        };
        assert!((1..=SEEDS).any(shows), "no history of {SEEDS} shows {bug:?}");
    }
}

#[test]
fn transactions_of_replicas_are_serializable_whoever_is_lost() {
    for_each_pool(SEEDS / 3, transactions::SHAPE, |cluster| {
        let ledger = transactions::lose_an_engine(cluster);
        assert!(ledger.len() > 40, "only {} were answered", ledger.len());
        ledger.check(cluster.world.seed());
    });
}

#[test]
fn a_change_of_one_group_takes_few_requests_and_log_records() {
    for_each_pool(1, costs::SHAPE, |cluster| {
        // A change is forwarded, and said to be settled, by one request each. Both members store it by one record, and a leader that
        // has to commit or give it up by two. Targets do something beside.
        let beside = costs::CHANGES / 2;
        let update = costs::of_changes(cluster, "RP_2G1", false);
        assert!(update.requests <= 2 * costs::CHANGES + beside, "{update:?}");
        assert!(update.records <= 2 * costs::CHANGES + beside, "{update:?}");
    });
    for_each_pool(1, costs::SHAPE, |cluster| {
        let beside = costs::CHANGES / 2;
        let transaction = costs::of_changes(cluster, "RP_2G1", true);
        assert!(transaction.requests <= 2 * costs::CHANGES + beside, "{transaction:?}");
        assert!(transaction.records <= 3 * costs::CHANGES + beside, "{transaction:?}");
    });
}

#[test]
fn a_change_of_a_group_of_three_takes_a_request_there_and_a_notice_for_each_other_member() {
    for_each_pool(1, costs::SHAPE, |cluster| {
        let beside = costs::CHANGES / 2;
        let update = costs::of_changes(cluster, "RP_3G1", false);
        assert!(update.requests <= 4 * costs::CHANGES + beside, "{update:?}");
        assert!(update.records <= 3 * costs::CHANGES + beside, "{update:?}");
    });
}

#[test]
fn members_of_groups_of_three_that_lose_their_leaders_agree_on_what_those_have_left() {
    for (seeds, mix) in [(SEEDS / 3, Mix::All), (SEEDS / 6, Mix::Conditional)] {
        for_each_pool(seeds, many::SHAPE, |cluster| many::lose_leaders(cluster, mix));
    }
}

#[test]
fn new_leaders_that_take_nothing_over_are_found() {
    let shows = |seed: u64| {
        let cluster = Cluster::start(seed, many::SHAPE);
        cluster.create_pool("tank");
        many::shows(&cluster, PlantedBug::NothingTakenOver)
    };
    assert!((1..=SEEDS).any(shows), "nothing of {SEEDS} seeds shows it");
}

#[test]
fn transactions_of_groups_of_three_are_serializable_whoever_is_lost() {
    for_each_pool(SEEDS / 6, many::SHAPE, |cluster| {
        let ledger = many::lose_leaders_of_transactions(cluster);
        assert!(ledger.len() > 40, "only {} were answered", ledger.len());
        ledger.check(cluster.world.seed());
    });
}

#[test]
fn engines_of_a_pool_that_outlasts_two_are_lost_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| many::lose_engines(&many::start(seed)));
}

#[test]
fn engines_of_a_pool_that_outlasts_two_come_back_and_have_all_that_the_others_have() {
    for_each_seed(SEEDS / 10, |seed| many::come_back(&many::start_four(seed)));
}

#[test]
fn engines_of_a_pool_that_outlasts_two_start_again_and_have_all_that_the_others_have() {
    for_each_seed(SEEDS / 10, |seed| many::start_again(&many::start(seed)));
}

#[test]
fn transactions_of_groups_of_three_go_on_while_engines_come_back() {
    for_each_seed(SEEDS / 15, |seed| many::transactions_come_back(&many::start(seed)));
}

#[test]
fn places_in_groups_of_three_go_to_others_and_back() {
    for_each_seed(SEEDS / 60, |seed| heirs::outlast_one_loss_after_the_other(&heirs::start_of_three(seed)));
    for_each_seed(SEEDS / 60, |seed| moving::give_places_back(&heirs::start_of_three(seed)));
    for_each_seed(SEEDS / 60, |seed| moving::drain_and_take_back(&heirs::start_of_three(seed)));
    for_each_seed(SEEDS / 60, |seed| moving::move_under_transactions(&heirs::start_of_three(seed)));
}

#[test]
fn objects_without_replicas_take_part_in_transactions_of_others() {
    for_each_pool(SEEDS / 15, transactions::SHAPE, |cluster| {
        transactions::mix_classes(cluster).check(cluster.world.seed());
    });
}

#[test]
fn replicas_that_can_not_reach_each_other_acknowledge_nothing_alone() {
    for_each_pool(SEEDS / 6, replicas::SHAPE, |cluster| {
        replicas::part_engines(cluster, Mix::All).check(cluster.world.seed());
    });
}

#[test]
fn an_engine_of_a_pool_with_redundancy_is_lost_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| members::lose_an_engine(&members::start(seed)).check(seed));
}

/// A change of who is a member of a pool with redundancy, and the run of a seed that checks what becomes of it.
type Change = (&'static str, fn(u64));

const CHANGES: [Change; 21] = [
    ("lost", |seed| members::lose_an_engine(&members::start(seed)).check(seed)),
    ("cut off", |seed| members::cut_an_engine_off(&members::start(seed)).check(seed)),
    ("restarted", |seed| members::restart_engines(&members::start(seed)).check(seed)),
    ("empty", |seed| members::return_empty(&members::start(seed)).check(seed)),
    ("beyond redundancy", |seed| members::wait_for_engines(&members::start(seed)).check(seed)),
    ("back", |seed| rebuild::comes_back_whole(&members::start(seed))),
    ("in doubt", |seed| rebuild::starts_again_whole(&members::start(seed))),
    ("back, transactions", |seed| rebuild::transactions_come_back_whole(&members::start(seed))),
    ("back, lost again", |seed| rebuild::is_lost_again_at_any_moment(&members::start(seed))),
    ("given up", |seed| heirs::outlast_one_loss_after_the_other(&heirs::start(seed))),
    ("given up, back", |seed| moving::give_places_back(&heirs::start(seed))),
    ("drained", |seed| moving::drain_and_take_back(&heirs::start(seed))),
    ("given up, transactions", |seed| moving::move_under_transactions(&heirs::start(seed))),
    ("three members: lost", |seed| many::lose_engines(&many::start(seed))),
    ("three members: back", |seed| many::come_back(&many::start(seed))),
    ("three members: restarted", |seed| many::start_again(&many::start_four(seed))),
    ("three members: back, transactions", |seed| many::transactions_come_back(&many::start(seed))),
    ("three members: given up", |seed| {
        heirs::outlast_one_loss_after_the_other(&heirs::start_of_three(seed));
    }),
    ("three members: given up, back", |seed| moving::give_places_back(&heirs::start_of_three(seed))),
    ("three members: drained", |seed| moving::drain_and_take_back(&heirs::start_of_three(seed))),
    ("three members: given up, transactions", |seed| {
        moving::move_under_transactions(&heirs::start_of_three(seed));
    }),
];

/// The one test of which many runs add up: `make sim TEST=histories SEEDS=<n> FROM=<n>`. The others run the first seeds of each change.
#[test]
fn histories() {
    for_each_of_all(CHANGES.len() as u64, |seed| {
        let at = usize::try_from(seed % CHANGES.len() as u64).expect("few changes");
        let (name, change) = CHANGES[at];
        println!("seed {seed}: {name}");
        // A seed of its own: the others' first ones have been run.
        change(seed + HISTORIES);
    });
}

#[test]
fn an_engine_that_is_cut_off_from_the_others_serves_its_clients_nothing_stale() {
    for_each_seed(SEEDS / 10, |seed| members::cut_an_engine_off(&members::start(seed)).check(seed));
}

#[test]
fn histories_show_engines_that_serve_when_their_leases_have_ended() {
    let shows = |seed: u64| members::shows_ignored_leases(&members::start(seed));
    assert!((1..=SEEDS).any(shows), "no history of {SEEDS} shows it");
}

#[test]
fn engines_of_a_pool_with_redundancy_start_again_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| members::restart_engines(&members::start(seed)).check(seed));
}

#[test]
fn an_engine_of_a_pool_with_redundancy_returns_empty_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 20, |seed| members::return_empty(&members::start(seed)).check(seed));
}

#[test]
fn a_pool_beyond_its_redundancy_waits_for_its_engines_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 20, |seed| members::wait_for_engines(&members::start(seed)).check(seed));
}

#[test]
fn clients_of_a_pool_with_redundancy_wait_for_seconds_when_an_engine_is_lost_and_nothing_fails() {
    for_each_seed(SEEDS / 20, |seed| members::wait_for_the_map_alone(&members::start(seed)));
}

#[test]
fn engines_that_come_back_have_all_that_the_others_have_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| rebuild::comes_back_whole(&members::start(seed)));
}

#[test]
fn engines_of_a_pool_with_redundancy_that_start_again_have_all_that_the_others_have() {
    for_each_seed(SEEDS / 10, |seed| rebuild::starts_again_whole(&members::start(seed)));
}

#[test]
fn transactions_go_on_and_are_serializable_while_engines_come_back() {
    for_each_seed(SEEDS / 10, |seed| rebuild::transactions_come_back_whole(&members::start(seed)));
}

#[test]
fn an_engine_that_comes_back_and_is_lost_again_loses_nothing() {
    for_each_seed(SEEDS / 10, |seed| rebuild::is_lost_again_at_any_moment(&members::start(seed)));
}

#[test]
fn an_engine_that_comes_back_gets_only_what_changed() {
    for_each_seed(SEEDS / 60, |seed| rebuild::only_what_changed_comes(&members::start(seed)));
}

#[test]
fn an_engine_that_starts_again_while_a_replica_of_the_service_is_away_keeps_its_leases() {
    for_each_seed(SEEDS / 60, |seed| heirs::start_again_while_a_replica_is_away(&heirs::start(seed)));
}

#[test]
fn engines_that_are_lost_one_after_the_other_are_outlasted_once_others_have_their_places() {
    for_each_seed(SEEDS / 10, |seed| heirs::outlast_one_loss_after_the_other(&heirs::start(seed)));
}

#[test]
fn engines_that_come_back_while_others_fill_their_places_keep_them_or_get_them_back() {
    for_each_seed(SEEDS / 100, |seed| heirs::come_back_while_others_fill(&heirs::start(seed)));
}

#[test]
fn engines_get_their_places_back_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| moving::give_places_back(&heirs::start(seed)));
}

#[test]
fn engines_are_drained_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| moving::drain_and_take_back(&heirs::start(seed)));
}

#[test]
fn transactions_are_serializable_while_places_go_and_come_back() {
    for_each_seed(SEEDS / 10, |seed| moving::move_under_transactions(&heirs::start(seed)));
}

#[test]
fn an_engine_joins_a_pool_and_histories_are_linearizable() {
    for_each_seed(SEEDS / 10, |seed| growing::join(&growing::start(seed)));
}

#[test]
fn transactions_are_serializable_while_an_engine_joins_their_pool() {
    for_each_seed(SEEDS / 10, |seed| growing::join_under_transactions(&growing::start(seed)));
}

#[test]
fn an_engine_that_joins_a_pool_gets_its_share_of_it() {
    for_each_seed(3, |seed| growing::get_a_share(&growing::start(seed)));
}

#[test]
fn places_that_are_handed_over_before_their_data_or_without_its_deletions_are_found() {
    for bug in [PlantedBug::SaidBeforeItCame, PlantedBug::ResurrectedDeletion] {
        let shows = |seed: u64| growing::shows(&growing::start(seed), bug);
        assert!((1..=SEEDS).any(shows), "nothing of {SEEDS} seeds shows {bug:?}");
    }
}

#[test]
fn what_can_not_join_a_pool_is_refused_and_leaves_nothing() {
    for_each_seed(2, |seed| growing::are_refused(&growing::start(seed)));
}

#[test]
fn deletions_that_come_back_are_found() {
    for bug in [PlantedBug::ResurrectedDeletion, PlantedBug::PunchBeforeItsHistory] {
        let shows = |seed: u64| rebuild::shows(&members::start(seed), bug);
        assert!((1..=SEEDS).any(shows), "nothing of {SEEDS} seeds shows {bug:?}");
    }
}

#[test]
fn snapshots_of_what_is_not_decided_are_found() {
    let shows = |seed: u64| {
        let cluster = Cluster::start(seed, transactions::SHAPE);
        cluster.create_pool("tank");
        transactions::shows(&cluster, PlantedBug::SnapshotOfUndecided)
    };
    assert!((1..=SEEDS).any(shows), "nothing of {SEEDS} seeds shows it");
}

#[test]
fn replicated_services_outlive_the_engines_that_run_them() {
    for (engines, redundancy) in [(3, 1), (5, 2)] {
        for_each_seed(SEEDS / 30, |seed| services::outlive_their_engines(seed, engines, redundancy));
    }
}

#[test]
fn a_rebuild_yields_to_clients_and_ends() {
    for_each_seed(1, pacing::yields_to_clients);
}

#[test]
fn a_pool_that_has_grown_goes_on_with_a_full_service_when_those_are_lost_that_it_was_made_with() {
    for_each_seed(SEEDS / 100, successors::stand_in_for_the_first_ones);
}

#[test]
fn an_engine_that_is_drained_has_another_one_run_the_service() {
    for_each_seed(SEEDS / 60, successors::stand_in_for_who_is_drained);
}

#[test]
fn a_service_that_one_engine_runs_gets_replicas_when_its_pool_grows() {
    for_each_seed(SEEDS / 60, successors::stand_beside_the_only_one);
}

#[test]
fn the_list_of_a_system_that_began_with_one_engine_is_kept_by_three() {
    for_each_seed(2, successors::keep_the_list_of_a_system_that_grows);
}

#[test]
fn histories_are_linearizable_where_engines_come_back_at_each_others_addresses() {
    for_each_seed(SEEDS / 5, |seed| {
        let cluster = Cluster::start_on(seed, Shape { engines: 3, targets: 3, clients: 3 }, Vec::new(), true);
        cluster.create_pool("tank");
        let run = workload::start(&cluster, "tank", Mix::All);
        faults::inject(&cluster, &run);
        faults::bring_back(&cluster);
        run.finish(&cluster).check(seed);
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let cluster = Cluster::start(seed, Shape { engines: 2, targets: 1, clients: 2 });
        cluster.create_pool("tank");
        let run = workload::start(&cluster, "tank", Mix::All);
        faults::inject(&cluster, &run);
        faults::bring_back(&cluster);
        run.finish(&cluster);
        cluster.world.trace_hash()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn pools_are_created_once_whatever_happens_meanwhile() {
    for_each_seed(SEEDS / 8, |seed| {
        let cluster = Cluster::start(seed, Shape { engines: 3, targets: 1, clients: 1 });
        cluster.create_and_destroy_under_faults();
    });
}

#[test]
fn pools_are_created_once_over_a_tree_of_engines_whose_inner_nodes_crash() {
    for_each_seed(SEEDS / 50, |seed| {
        let cluster = Cluster::start(seed, Shape { engines: 9, targets: 1, clients: 1 });
        cluster.create_and_destroy_under_faults();
    });
}

#[test]
fn an_engine_that_is_added_makes_itself_known_and_takes_part() {
    for_each_seed(3, groups::grow);
}

#[test]
fn an_engine_with_an_old_list_of_engines_catches_up() {
    for_each_seed(3, groups::catch_up);
}

#[test]
fn space_is_summed_up_over_a_tree_around_engines_that_are_gone() {
    for_each_seed(2, groups::sum_around_the_dead);
}

#[test]
fn a_quota_bites_over_all_targets_and_not_before_it_is_used_up() {
    for_each_pool(3, Shape { engines: 2, targets: 2, clients: 1 }, |cluster| {
        workload::fill_to_quota(cluster, "tank");
    });
}

#[test]
fn overwriting_needs_no_more_quota_than_what_is_there() {
    for_each_pool(3, Shape { engines: 1, targets: 2, clients: 1 }, |cluster| {
        workload::overwrite_within_quota(cluster, "tank");
    });
}

#[test]
fn who_lacks_a_little_room_is_told_so_in_seconds() {
    for_each_pool(2, Shape { engines: 1, targets: 1, clients: 1 }, |cluster| {
        workload::lack_a_little(cluster, "tank");
    });
}

#[test]
fn a_full_pool_recovers_when_data_is_removed() {
    for_each_pool(2, Shape { engines: 1, targets: 2, clients: 1 }, |cluster| {
        workload::fill_to_the_brim(cluster, "tank");
    });
}

#[test]
fn what_a_member_has_no_room_for_is_refused_whoever_leads() {
    for_each_seed(3, |seed| full::is_refused_alike(&full::start(seed)));
}

#[test]
fn a_target_without_room_for_what_it_lacks_says_so() {
    for_each_seed(2, |seed| full::comes_back_to_no_room(&full::start(seed)));
}

#[test]
fn a_full_pool_with_replicas_recovers_when_data_is_removed() {
    for_each_seed(4, |seed| full::fills_up_together(&full::start(seed)));
}

#[test]
fn a_client_that_died_holds_its_container_for_minutes_and_a_live_one_for_ever() {
    for_each_pool(2, Shape { engines: 2, targets: 1, clients: 2 }, |cluster| {
        workload::leases(cluster, "tank");
    });
}

#[test]
fn a_snapshot_shows_what_was_acknowledged_before_and_nothing_later() {
    for_each_pool(SEEDS / 20, Shape { engines: 2, targets: 2, clients: 1 }, |cluster| {
        cluster.skew_clocks(Duration::from_millis(300));
        workload::snapshots(cluster, "tank");
    });
}

#[test]
fn a_snapshot_is_whole_or_refused_whoever_dies_meanwhile() {
    for_each_seed(SEEDS / 10, snapshots::are_whole_or_refused);
}

#[test]
fn a_snapshot_is_listed_or_not_when_the_device_of_its_service_fails() {
    let open = Cell::new(0);
    for_each_seed(SEEDS / 10, |seed| {
        let unknown = snapshots::are_listed_or_not_when_the_device_fails(seed);
        open.set(open.get() + u32::from(unknown));
    });
    println!("{} times only the device could tell", open.get());
}

#[test]
fn a_snapshot_goes_while_an_engine_is_away() {
    for_each_seed(2, snapshots::go_while_an_engine_is_away);
}

#[test]
fn a_pool_that_gets_a_container_is_not_destroyed_without_force() {
    for_each_pool(SEEDS / 10, Shape { engines: 2, targets: 1, clients: 1 }, |cluster| {
        workload::create_while_the_pool_goes(cluster, "tank");
    });
}

#[test]
fn an_engine_that_sends_requests_away_answers_its_probes() {
    for_each_pool(2, Shape { engines: 3, targets: 1, clients: 40 }, |cluster| {
        saturation::probes_are_answered(cluster);
    });
}

#[test]
fn tenants_on_virtual_networks_reach_their_own_pools_and_no_others() {
    for_each_seed(3, |seed| {
        tenants::are_kept_apart(seed, false);
        // As on `cxi`.
        tenants::are_kept_apart(seed, true);
    });
}

#[test]
fn a_target_with_a_faulty_device_is_out_of_service_until_it_is_opened_again() {
    for_each_pool(3, Shape { engines: 2, targets: 2, clients: 1 }, |cluster| {
        devices::turn_faulty_and_come_back(cluster, "tank");
    });
}

#[test]
fn a_target_whose_disk_is_slow_is_waited_for() {
    for_each_pool(3, Shape { engines: 2, targets: 2, clients: 1 }, |cluster| {
        devices::wait_for_a_slow_flush(cluster, "tank");
    });
}

#[test]
fn a_target_whose_disk_stalls_for_very_long_is_out_of_service_until_it_goes_on() {
    for_each_pool(3, Shape { engines: 2, targets: 2, clients: 1 }, |cluster| {
        devices::come_back_from_a_long_stall(cluster, "tank");
    });
}

#[test]
fn a_map_is_given_out_once_when_the_device_of_its_service_fails() {
    for_each_seed(4, maps::hold_without_the_device_of_the_service);
}

#[test]
fn a_map_that_can_be_kept_nowhere_is_given_out_when_it_can() {
    for_each_seed(4, maps::wait_until_they_are_kept);
}

#[test]
fn a_service_that_lost_its_map_is_told_again_which_devices_are_faulty() {
    for_each_seed(6, maps::are_told_again_of_what_they_lost);
}

#[test]
fn a_service_out_of_reach_is_told_of_a_device_rarely_and_until_its_map_says_it() {
    for_each_seed(2, maps::are_told_rarely_and_until_they_agree);
}

#[test]
fn what_a_service_knows_is_as_it_was_or_refused_when_its_device_fails() {
    for_each_seed(6, kept::is_as_it_was_or_refused);
}

#[test]
fn a_long_request_with_a_forged_handle_is_not_fetched() {
    for_each_seed(2, handles::are_checked_before_their_requests_are_fetched);
}

#[test]
fn engines_that_were_away_follow_what_became_of_their_pools() {
    for_each_seed(6, absent::follow_when_they_are_back);
    for_each_seed(2, absent::follow_when_their_device_is_good);
    for_each_seed(2, absent::are_refused_where_nobody_answers);
}

#[test]
fn a_target_that_asks_the_pool_service_after_a_pause_has_its_answer_at_once() {
    for_each_seed(5, learning::goes_on_at_once_after_a_pause);
}

#[test]
fn what_a_target_could_not_ask_about_in_time_is_not_done_later() {
    for_each_seed(10, learning::does_nothing_for_who_has_given_up);
}

#[test]
fn handles_name_the_nodes_of_clients_that_say_where_they_are() {
    for_each_seed(3, handles::name_the_nodes_of_clients_that_say_where_they_are);
}

#[test]
fn handles_count_while_their_clients_work() {
    for_each_seed(3, handles::count_while_their_clients_work);
}

#[test]
fn handles_that_are_given_back_are_not_told_of() {
    for_each_seed(3, handles::are_not_told_of_when_they_are_given_back);
}

#[test]
fn a_tenants_quota_is_kept_over_its_pools() {
    for_each_seed(5, |seed| quotas::are_kept_over_pools(&Cluster::start(seed, quotas::POOLS)));
}

#[test]
fn a_tenants_quota_outlives_engines() {
    for_each_seed(10, |seed| quotas::outlive_engines(&Cluster::start(seed, quotas::POOLS)));
}

#[test]
fn clients_of_a_tenant_share_what_it_may_do_a_second() {
    for_each_seed(1, |seed| quotas::share_rates(&Cluster::start(seed, quotas::SPREAD)));
}
