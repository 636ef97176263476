//! The promises of a lease store: the handler's answer stands, and a key is never free after a charge.

use tower_idempotency::store::StoreKind::Lease;

use super::{
    ONE_CONNECTION,
    app::{App, Handler},
    pool::all_idle,
    statement::{CHECK, release, renew, reserve, settle},
    world::{World, new_account},
};
use crate::{
    network::{LIMIT, Outage, end, until},
    support::handler::Gate,
    table::{assert_kept, recorded, seen},
};

/// Which call meets what | what the request gets, how often the handler has run then, and what it has charged | what is recorded
/// once the outage is over and the store was told what it could be told | what the same request gets then, at last, and how
/// often the handler ran and charged in all.
const PROMISES: &str = "
call     outage     | answer                runs charges | record    | retry               runs charges
reserve  refused    | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  hangs      | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  cut before | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  cut after  | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  swallowed  | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  late       | 503 store_unavailable    0       0 | in flight | 409 outcome_unknown    0       0
renew    refused    | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    hangs      | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    swallowed  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete refused    | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete hangs      | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete swallowed  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
release  refused    | 404 run 1                1       0 | none      | 201 run 2              2       1
release  hangs      | 404 run 1                1       0 | none      | 201 run 2              2       1
release  cut before | 404 run 1                1       0 | none      | 201 run 2              2       1
release  cut after  | 404 run 1                1       0 | none      | 201 run 2              2       1
release  swallowed  | 404 run 1                1       0 | none      | 201 run 2              2       1
release  late       | 404 run 1                1       0 | none      | 201 run 2              2       1
abandon  refused    | 502 run 1                1       1 | in flight | 409 outcome_unknown    1       1
abandon  hangs      | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  cut before | 502 run 1                1       1 | in flight | 409 outcome_unknown    1       1
abandon  cut after  | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  swallowed  | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  late       | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
replay   refused    | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   hangs      | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   cut before | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   cut after  | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   swallowed  | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   late       | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
";

/// The same where all calls share a connection, and what was cut off is sent once more on another one. The check is what a store
/// asks before its first reservation.
const PROMISES_OF_ONE_CONNECTION: &str = "
call     outage     | answer                runs charges | record    | retry               runs charges
check    refused    | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
check    hangs      | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
check    cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
check    cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
check    swallowed  | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
check    late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
reserve  refused    | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  hangs      | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
reserve  cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
reserve  swallowed  | 503 store_unavailable    0       0 | none      | 201 run 1              1       1
reserve  late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    refused    | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    hangs      | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    swallowed  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
renew    late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete refused    | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete hangs      | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete cut before | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete cut after  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete swallowed  | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
complete late       | 201 run 1                1       1 | 201       | 201 run 1, replayed    1       1
release  refused    | 404 run 1                1       0 | none      | 201 run 2              2       1
release  hangs      | 404 run 1                1       0 | none      | 201 run 2              2       1
release  cut before | 404 run 1                1       0 | none      | 201 run 2              2       1
release  cut after  | 404 run 1                1       0 | none      | 201 run 2              2       1
release  swallowed  | 404 run 1                1       0 | none      | 201 run 2              2       1
release  late       | 404 run 1                1       0 | none      | 201 run 2              2       1
abandon  refused    | 502 run 1                1       1 | in flight | 409 outcome_unknown    1       1
abandon  hangs      | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  cut before | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  cut after  | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  swallowed  | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
abandon  late       | 502 run 1                1       1 | unknown   | 409 outcome_unknown    1       1
replay   refused    | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   hangs      | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   cut before | 201 run 1, replayed      1       1 | 201       | 201 run 1, replayed    1       1
replay   cut after  | 201 run 1, replayed      1       1 | 201       | 201 run 1, replayed    1       1
replay   swallowed  | 503 store_unavailable    1       1 | 201       | 201 run 1, replayed    1       1
replay   late       | 201 run 1, replayed      1       1 | 201       | 201 run 1, replayed    1       1
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_key_is_free_after_a_charge() {
    let Some(world) = World::shared().await else {
        return;
    };
    let sent = points()
        .into_iter()
        .filter(|point| !point.statement.is_empty());
    let lines = sent.flat_map(|point| {
        let world = &world;
        Outage::ALL.map(move |outage| line(world.clone(), point, outage))
    });
    let promises = match ONE_CONNECTION {
        true => PROMISES_OF_ONE_CONNECTION,
        false => PROMISES,
    };
    assert_kept(promises, |_| true, lines).await;
}

/// A call of the store.
#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    /// Nothing if this backend doesn't send it.
    statement: &'static str,
    /// What the handler answers.
    status: u16,
    /// Whether it charges.
    charges: bool,
    /// Whether it runs for as long as it takes to renew its lease.
    is_long: bool,
    /// Whether the same request was answered before.
    is_replay: bool,
}

const fn point(name: &'static str, statement: &'static str) -> Point {
    Point {
        name,
        statement,
        status: 201,
        charges: true,
        is_long: false,
        is_replay: false,
    }
}

fn points() -> [Point; 7] {
    [
        point("check", CHECK),
        point("reserve", reserve()),
        Point {
            is_long: true,
            ..point("renew", renew())
        },
        point("complete", settle()),
        Point {
            status: 404,
            charges: false,
            ..point("release", release())
        },
        Point {
            status: 502,
            ..point("abandon", settle())
        },
        Point {
            is_replay: true,
            ..point("replay", reserve())
        },
    ]
}

async fn line(world: World, point: Point, outage: Outage) -> String {
    let gate = Gate::closed();
    let handler = Handler {
        charges: point.charges,
        before: point.is_long.then(|| gate.clone()),
        ..Handler::answering(point.status)
    };
    let app = App::new(&world, Lease, 2, handler);
    let account = new_account();
    if point.is_replay {
        drop(app.charge(&account).await);
        all_idle(&app.pool).await;
    }
    let strikes = app.proxy.inject(outage.on(point.statement));
    let mut asked = app.spawn_charge(&account);
    tokio::select! {
        biased;
        () = strikes.struck(1) => outage.struck(&app.proxy),
        answer = &mut asked => panic!("{}, {}: not sent before {answer:?}", point.name, outage.name()),
    }
    if point.is_long {
        if outage != Outage::Refused && !(ONE_CONNECTION && outage.lasts()) {
            let renewed_again = || async { (app.proxy.count(renew()) == 2).then_some(()) };
            until(renewed_again).await;
        }
        gate.open();
    }

    let answer = seen(&end(asked).await.expect("no panic"));
    let (runs, charges) = (app.runs.count(), world.charges(&account).await);
    if outage == Outage::Late {
        // Later than all else that the store is told.
        assert_eq!(app.drain.wait(LIMIT).await, 0);
    }
    outage.end(&app.proxy, &strikes).await;
    assert_eq!(app.drain.wait(LIMIT).await, 0);
    end(app.store.all_calls_ended()).await;
    let record = recorded(world.record(Lease, &account).await);
    let retry = seen(&app.retry(&account).await);
    let (all_runs, all_charges) = (app.runs.count(), world.charges(&account).await);
    app.assert_healthy().await;
    let (name, fault) = (point.name, outage.name());
    format!(
        "{name:<8} {fault:<10} | {answer:<21} {runs:>4} {charges:>7} | {record:<9} | {retry:<19} {all_runs:>4} {all_charges:>7}"
    )
}
