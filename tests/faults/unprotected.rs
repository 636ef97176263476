//! A lease store that can't be reached, where handlers were to run all the same.

use std::sync::{Arc, Mutex};

use http::{Request, StatusCode};
use tower::service_fn;
use tower_idempotency::{
    IdempotencyContext, IdempotencyLayer, OnStoreFailure, RequestBody, store::StoreKind::Lease,
};

use super::{
    ONE_CONNECTION,
    app::App,
    statement::reserve,
    world::{World, new_account},
};
use crate::{
    network::{LIMIT, Outage, end},
    support::{Body, handler::response},
    table::{assert_kept, recorded, seen},
};

/// What the reservation meets | what the request gets, whether its handler was told that it is protected, and what is recorded
/// then | what the same request gets when the outage is over, whether a run of its own was protected, and how often the handler
/// ran and charged in all.
const PROMISES: &str = "
outage     | answer    protected record | retry               protected runs charges
refused    | 201 run 1 false     none   | 201 run 2           true      2    2
hangs      | 201 run 1 false     201    | 201 run 1, replayed -         1    1
cut before | 201 run 1 false     201    | 201 run 1, replayed -         1    1
cut after  | 201 run 1 false     201    | 201 run 1, replayed -         1    1
swallowed  | 201 run 1 false     201    | 201 run 1, replayed -         1    1
late       | 201 run 1 false     201    | 201 run 1, replayed -         1    1
";

/// The same where all calls share a connection, and what was cut off is sent once more on another one.
const PROMISES_OF_ONE_CONNECTION: &str = "
outage     | answer    protected record | retry               protected runs charges
refused    | 201 run 1 false     none   | 201 run 2           true      2    2
hangs      | 201 run 1 false     201    | 201 run 1, replayed -         1    1
cut before | 201 run 1 true      201    | 201 run 1, replayed -         1    1
cut after  | 201 run 1 true      201    | 201 run 1, replayed -         1    1
swallowed  | 201 run 1 false     201    | 201 run 1, replayed -         1    1
late       | 201 run 1 true      201    | 201 run 1, replayed -         1    1
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_without_protection_knows_it_and_is_recorded_where_that_is_possible() {
    let Some(world) = World::shared().await else {
        return;
    };
    let promises = match ONE_CONNECTION {
        true => PROMISES_OF_ONE_CONNECTION,
        false => PROMISES,
    };
    let lines = Outage::ALL.map(|outage| line(world.clone(), outage));
    assert_kept(promises, |_| true, lines).await;
}

async fn line(world: World, outage: Outage) -> String {
    let protected = Arc::<Mutex<Vec<bool>>>::default();
    let told = Arc::clone(&protected);
    let unprotected = OnStoreFailure::RunUnprotected;
    let settings = |layer: IdempotencyLayer| layer.with_on_store_failure(unprotected);
    let app = App::around(&world, Lease, 2, settings, |runs, _| {
        let (runs, world) = (runs.clone(), world.clone());
        service_fn(move |request: Request<RequestBody<Body>>| {
            let context = request.extensions().get::<IdempotencyContext>();
            let context = context.expect("a keyed request").clone();
            told.lock().expect("no panic").push(context.is_protected());
            let (run, world) = (runs.add(), world.clone());
            async move {
                world.charge(context.key().as_str()).await;
                Ok(response(StatusCode::CREATED, format!("run {run}")))
            }
        })
    });
    let was_protected = |run: usize| {
        let protected = protected.lock().expect("no panic");
        protected
            .get(run - 1)
            .map_or("-".to_owned(), bool::to_string)
    };
    let account = new_account();
    let strikes = app.proxy.inject(outage.on(reserve()));
    let asked = app.spawn_charge(&account);
    strikes.struck(1).await;
    outage.struck(&app.proxy);
    let answer = seen(&end(asked).await.expect("no panic"));
    let first = was_protected(1);
    outage.end(&app.proxy, &strikes).await;
    assert_eq!(app.drain.wait(LIMIT).await, 0);
    end(app.store.all_calls_ended()).await;
    let record = recorded(world.record(Lease, &account).await);
    let retry = seen(&app.charge(&account).await);
    let second = was_protected(2);
    let (runs, charges) = (app.runs.count(), world.charges(&account).await);
    app.assert_healthy().await;
    let fault = outage.name();
    format!(
        "{fault:<10} | {answer} {first:<9} {record:<6} | {retry:<19} {second:<9} {runs:<4} {charges}"
    )
}
