//! With PgBouncer between the proxy and Postgres: what a client leaves behind that is gone, another one may inherit.

use tower_idempotency::store::StoreKind::Transaction;

use super::{
    app::{App, Handler},
    shared_server,
    statement::COMMIT,
    world::{World, new_account},
};
use crate::{
    network::{Outage, end, until},
    servers::PgBouncer,
    support::handler::Gate,
    table::seen,
};

/// A database of its own behind PgBouncer, which has two connections to it.
async fn pooled() -> Option<(World, PgBouncer)> {
    let server = shared_server()?;
    let bouncer = PgBouncer::start(server, 2)?;
    let mut world = World::on(server).await;
    let url = bouncer.through(&world.url);
    world.url = format!("{url}?statement-cache-capacity=0");
    Some((world, bouncer))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_in_mid_run_leaves_no_lock_behind() {
    let Some((world, _bouncer)) = pooled().await else {
        return;
    };
    let gate = Gate::closed();
    let handler = Handler {
        after: Some(gate.clone()),
        ..Handler::answering(201)
    };
    let first = App::new(&world, Transaction, 1, handler);
    let other = App::new(&world, Transaction, 1, Handler::answering(201));
    let account = new_account();
    let asked = first.spawn_charge(&account);
    end(gate.reached()).await;
    assert_eq!(locks(&world).await, 1);
    assert_eq!(seen(&other.charge(&account).await), "409 in_flight");

    first.proxy.cut();
    until(|| async { (locks(&world).await == 0).then_some(()) }).await;
    assert_eq!(seen(&other.charge(&account).await), "201 run 1");
    gate.open();
    assert_eq!(
        seen(&end(asked).await.expect("no panic")),
        "503 not_committed"
    );
    let retry = seen(&first.charge(&account).await);
    assert_eq!(retry, "201 run 1, replayed");
    assert_eq!(world.charges(&account).await, 1);
    first.assert_healthy().await;
    other.assert_healthy().await;
    assert_eq!(locks(&world).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_a_commit_is_found_out_on_another_connection() {
    let Some((world, _bouncer)) = pooled().await else {
        return;
    };
    for (outage, first, retry) in [
        (Outage::CutAfter, "201 run 1", "201 run 1, replayed"),
        (Outage::CutBefore, "503 not_committed", "201 run 2"),
    ] {
        let app = App::new(&world, Transaction, 1, Handler::answering(201));
        let account = new_account();
        app.proxy.inject(outage.on(COMMIT));
        assert_eq!(seen(&app.charge(&account).await), first);
        assert_eq!(seen(&app.retry(&account).await), retry);
        assert_eq!(world.charges(&account).await, 1);
        app.assert_healthy().await;
    }
    assert_eq!(locks(&world).await, 0);
}

/// How many advisory locks are held in the database.
async fn locks(world: &World) -> i64 {
    let counted = sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE locktype = 'advisory' AND datname = current_database()",
    );
    let counted = counted.fetch_one(&world.direct).await;
    counted.expect("a direct connection")
}
