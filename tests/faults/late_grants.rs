//! Claims that wait for a lock of the database for longer than their lease: it is over when it is granted.

use std::time::Duration;

use sqlx::Executor;
use tokio::time::Instant;
use tower_idempotency::store::StoreKind::Lease;

use super::{
    app::{App, Handler},
    shared_server,
    world::{World, new_account},
};
use crate::{
    network::{LIMIT, end, until},
    support::faulty::Call,
    table::{recorded, seen},
};

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_for_longer_than_its_lease_starts_no_run_and_keeps_no_key() {
    let Some(server) = shared_server() else {
        return;
    };
    // All rows are locked, which others would mind.
    let (world, account) = (World::on(server).await, new_account());
    let handler = Handler {
        charges: false,
        ..Handler::answering(404)
    };
    let app = App::with(&world, Lease, 2, handler, |layer| {
        layer
            .with_lease(LEASE)
            .with_store_call_limit(LEASE / 4)
            .with_run_limit(LIMIT)
    });
    // The row of a released key is there still.
    assert_eq!(seen(&app.charge(&account).await), "404 run 1");
    assert_eq!(app.store.count(Call::Release), 1);
    let lock = "SELECT fence FROM tower_idempotency_leases FOR UPDATE";
    let mut holder = world.direct.begin().await.expect("a transaction");
    let locked = holder.fetch_all(lock).await.expect("a lock");
    assert_eq!(locked.len(), 1);

    let sent = Instant::now();
    let asked = app.spawn_charge(&account);
    let answer = seen(&end(asked).await.expect("no panic"));
    assert_eq!(answer, "503 store_unavailable");
    until(|| async { (sent.elapsed() > LEASE).then_some(()) }).await;
    assert_eq!(app.drain.running(), 1, "it waits still");
    assert_eq!(app.store.count(Call::Release), 1);
    holder.rollback().await.expect("a rollback");
    assert_eq!(app.drain.wait(LIMIT).await, 0);
    // It was granted, and given back.
    assert_eq!(app.store.count(Call::Release), 2);
    assert_eq!(recorded(world.record(Lease, &account).await), "none");
    assert_eq!((app.runs.count(), world.charges(&account).await), (1, 0));

    assert_eq!(seen(&app.charge(&account).await), "201 run 2");
    let again = seen(&app.charge(&account).await);
    assert_eq!(again, "201 run 2, replayed");
    assert_eq!((app.runs.count(), world.charges(&account).await), (2, 1));
    app.assert_healthy().await;
}
