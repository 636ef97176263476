//! How many times a call goes to the server and back, and what waits for what.

use std::sync::Arc;

use sqlx::MySqlPool;
use tower_idempotency::{
    StoreErrorKind,
    mysql::{LeaseStore, TransactionStore},
    store::{Note, Reservation, Store, Takeover, Terms},
};

use super::{
    database,
    servers::{Fault, Proxy},
};
use crate::mysql_support::*;

struct World {
    proxy: Proxy,
    pool: MySqlPool,
    outside: MySqlPool,
}

impl World {
    async fn new(database: Database) -> Self {
        let outside = database.shop().await;
        let proxy = Proxy::start(&database.url);
        let pool = Database::at(proxy.url().to_owned()).pool(1).await;
        Self {
            proxy,
            pool,
            outside,
        }
    }

    /// The statements of the last call, and of one that sqlx sends when the connection is pooled, if it does.
    async fn statements(&self, from: usize, pooled: bool) -> usize {
        if pooled {
            until(|| async {
                self.proxy
                    .statements()
                    .last()
                    .is_some_and(|last| **last == *"ROLLBACK")
            })
            .await;
        }
        self.proxy.statements().len() - from - usize::from(pooled)
    }
}

/// Of calls that find their statements prepared.
#[tokio::test]
async fn a_lease_is_claimed_settled_and_replayed_in_a_round_trip_each() {
    let world = World::new(database!()).await;
    let store = LeaseStore::new(world.pool.clone());
    store.migrate().await.unwrap();
    let run_again = || terms().with_takeover(Takeover::RunAgain);
    for is_prepared in [false, true] {
        let trips = |from: usize| world.proxy.round_trips() - from;
        let check = |from: usize, expected: usize| {
            if is_prepared {
                assert_eq!(trips(from), expected);
            }
        };
        let key = fresh_key();
        let mut from = trips(0);
        let claimed = claim(&store, &key, &terms()).await;
        check(from, 1);
        from = trips(0);
        reserve(&store, &key).await;
        check(from, 1);
        from = trips(0);
        store.renew(&claimed, INSTANT).await.unwrap();
        check(from, 1);
        until(|| async { reserve(&store, &key).await.is_unknown() }).await;
        let (steps, note) = (store.steps().unwrap(), Note::new("step", "1"));
        from = trips(0);
        steps.note(&claimed, &note).await.unwrap();
        check(from, 1);
        from = trips(0);
        let taken = claim(&store, &key, &run_again()).await;
        check(from, 2);
        from = trips(0);
        assert_eq!(steps.notes(&taken).await.unwrap(), [note]);
        check(from, 1);
        from = trips(0);
        complete(&store, &taken, "done").await.unwrap();
        check(from, 1);
        from = trips(0);
        assert_replays(&reserve(&store, &key).await, "done");
        check(from, 1);
        let released = claim(&store, &fresh_key(), &terms()).await;
        from = trips(0);
        store.release(&released).await.unwrap();
        check(from, 1);
        store.purge_expired(10).await.unwrap();
        let lost = claim(&store, &fresh_key(), &terms()).await;
        sqlx::query("DELETE FROM tower_idempotency_leases")
            .execute(&world.outside)
            .await
            .unwrap();
        from = trips(0);
        complete(&store, &lost, "lost").await.unwrap();
        check(from, 2);
    }
}

trait IsUnknown {
    fn is_unknown(&self) -> bool;
}

impl IsUnknown for Reservation {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// A transaction of the handler's own would take BEGIN, its statement and COMMIT.
#[tokio::test]
async fn a_transaction_costs_two_round_trips_more_than_the_handlers_own() {
    let world = World::new(database!()).await;
    let store = TransactionStore::new(world.pool.clone());
    store.migrate().await.unwrap();
    for is_prepared in [false, true] {
        let key = fresh_key();
        let (mut from, trips) = (world.proxy.statements().len(), world.proxy.round_trips());
        let claimed = claim(&store, &key, &terms()).await;
        run(&mut take(&claimed), CHARGE).await.unwrap();
        complete(&store, &claimed, "done").await.unwrap();
        assert_eq!(world.statements(from, true).await, 3 + 2);
        if is_prepared {
            // One of them when the connection is pooled, whose answer comes after the call has ended.
            let expected = 3 + 2 + 1;
            until(|| async { world.proxy.round_trips() - trips >= expected }).await;
            assert_eq!(world.proxy.round_trips() - trips, expected);
        }
        from = world.proxy.statements().len();
        assert_replays(&reserve(&store, &key).await, "done");
        assert_eq!(world.statements(from, false).await, 2);

        from = world.proxy.statements().len();
        let released = claim(&store, &fresh_key(), &terms()).await;
        store.release(&released).await.unwrap();
        assert_eq!(world.statements(from, true).await, 3);
        sqlx::query("DELETE FROM charges")
            .execute(&world.outside)
            .await
            .unwrap();
    }
}

/// Nor do the statements that are sent as texts: those get into logs.
#[tokio::test]
async fn no_text_tells_a_response() {
    let world = World::new(database!()).await;
    let (lease, transaction) = (
        LeaseStore::new(world.pool.clone()),
        TransactionStore::new(world.pool.clone()),
    );
    lease.migrate().await.unwrap();
    transaction.migrate().await.unwrap();
    for store in [&lease as &dyn Store, &transaction] {
        let claimed = claim(store, &fresh_key(), &terms()).await;
        if let Some(steps) = store.steps() {
            let note = Note::new("secret", "secret");
            steps.note(&claimed, &note).await.unwrap();
        }
        complete(store, &claimed, "secret").await.unwrap();
        assert_replays(&reserve(store, claimed.key()).await, "secret");
    }
    for statement in world.proxy.statements() {
        let hex = "736563726574";
        assert!(
            !statement.contains("secret") && !statement.contains(hex),
            "{statement}"
        );
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_resolved_by_the_next_call() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let world = World::new(database!()).await;
        let store = TransactionStore::new(world.pool.clone());
        store.migrate().await.unwrap();
        let claimed = claim(&store, &fresh_key(), &terms()).await;
        run(&mut take(&claimed), CHARGE).await.unwrap();
        world.proxy.inject(fault.on("COMMIT"));
        assert_kind(
            complete(&store, &claimed, "done").await,
            StoreErrorKind::OutcomeUnknown,
        );
        let committed = matches!(fault, Fault::CutAfter);
        match complete(&store, &claimed, "done").await {
            Ok(()) => assert!(committed),
            Err(error) => {
                assert!(!committed);
                assert_eq!(error.kind(), StoreErrorKind::RolledBack);
            }
        }
        assert_eq!(count(&world.outside, CHARGES).await, i64::from(committed));
        if committed {
            assert_replays(&reserve(&store, claimed.key()).await, "done");
        } else {
            claim(&store, claimed.key(), &terms()).await;
        }
    }
}

/// The answer of its claim is lost: the row is there, and nobody else gets it.
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_had_by_asking_again() {
    let world = World::new(database!()).await;
    let store = LeaseStore::new(world.pool.clone());
    store.migrate().await.unwrap();
    let (key, terms) = (fresh_key(), terms());
    claim(
        &store,
        &fresh_key(),
        &Terms::new(terms.nonce(), LEASE, RETENTION),
    )
    .await;
    world
        .proxy
        .inject(Fault::CutAfter.on("INSERT INTO `tower_idempotency_leases`"));
    let lost = store.reserve(&key, &fingerprint(1), &terms).await;
    assert_kind(lost, StoreErrorKind::Unavailable);
    let again = claim(&store, &key, &terms).await;
    assert_eq!(again.attempt(), 1);
    world
        .proxy
        .inject(Fault::CutAfter.on("UPDATE `tower_idempotency_leases`"));
    assert_kind(
        complete(&store, &again, "done").await,
        StoreErrorKind::Unavailable,
    );
    complete(&store, &again, "done").await.unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

/// The second call waits for the first, and agrees with it.
#[tokio::test]
async fn two_completions_at_once_are_one() {
    let world = World::new(database!()).await;
    let store = TransactionStore::new(world.pool.clone());
    store.migrate().await.unwrap();
    let claimed = Arc::new(claim(&store, &fresh_key(), &terms()).await);
    run(&mut take(&claimed), CHARGE).await.unwrap();
    let strikes = world.proxy.inject(Fault::SwallowReply.on("COMMIT"));
    let completing = |body| {
        let (store, claimed) = (store.clone(), Arc::clone(&claimed));
        tokio::spawn(async move { complete(&store, &claimed, body).await })
    };
    let first = completing("first");
    strikes.struck(1).await;
    let second = completing("second");
    assert!(!first.is_finished());
    world.proxy.resume();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_replays(&reserve(&store, claimed.key()).await, "first");
    assert_eq!(count(&world.outside, CHARGES).await, 1);
}

/// What a takeover has read may be over when it comes to write.
#[tokio::test]
async fn an_owner_who_renews_in_between_is_not_taken_over() {
    let world = World::new(database!()).await;
    let taker = LeaseStore::new(world.pool.clone());
    taker.migrate().await.unwrap();
    let owner = LeaseStore::new(world.outside.clone());
    let key = fresh_key();
    let claimed = claim(
        &owner,
        &key,
        &Terms::new(terms().nonce(), INSTANT, RETENTION),
    )
    .await;
    until(|| async { reserve(&owner, &key).await.is_unknown() }).await;
    let strikes = world.proxy.inject(Fault::Hang.on("LAST_INSERT_ID"));
    let taking = tokio::spawn(async move {
        let terms = terms().with_takeover(Takeover::RunAgain);
        taker.reserve(&key, &fingerprint(1), &terms).await.unwrap()
    });
    strikes.struck(1).await;
    owner.renew(&claimed, LEASE).await.unwrap();
    world.proxy.resume();
    let taken = taking.await.unwrap();
    assert!(matches!(taken, Reservation::InFlight { .. }), "{taken:?}");
    complete(&owner, &claimed, "done").await.unwrap();
}

/// Or it was taken over, and has lapsed again: then it is one more.
#[tokio::test]
async fn a_takeover_in_between_is_counted() {
    let world = World::new(database!()).await;
    let taker = LeaseStore::new(world.pool.clone());
    taker.migrate().await.unwrap();
    let others = LeaseStore::new(world.outside.clone());
    let key = fresh_key();
    let lapsing =
        || Terms::new(terms().nonce(), INSTANT, RETENTION).with_takeover(Takeover::RunAgain);
    let lapsed = || until(|| async { reserve(&others, &key).await.is_unknown() });
    claim(&others, &key, &lapsing()).await;
    lapsed().await;
    let strikes = world.proxy.inject(Fault::Hang.on("LAST_INSERT_ID"));
    let taking = tokio::spawn(async move {
        let terms = terms().with_takeover(Takeover::RunAgain);
        claim(&taker, &key, &terms).await
    });
    strikes.struck(1).await;
    let between = claim(&others, &key, &lapsing()).await;
    assert_eq!(between.attempt(), 2);
    lapsed().await;
    world.proxy.resume();
    let taken = taking.await.unwrap();
    assert_eq!(taken.attempt(), 3);
    assert!(taken.fence() > between.fence());
}
