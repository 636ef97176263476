//! The statements that open a transaction where it isn't READ COMMITTED: there are others then.

use tower_idempotency::store::StoreKind::Transaction;

use super::{
    app::{App, Handler},
    pool::all_idle,
    skew::serializable,
    statement::{OPENING, OPENING_2, ROLLBACK},
    world::{World, new_account},
};
use crate::{
    network::{Outage, end},
    table::{assert_kept, recorded, seen},
};

/// Which statement meets what | what the request gets, how often the handler has run then, what it has charged, and what is
/// recorded | what the same request gets afterwards, and how often the handler ran and charged in all.
///
/// A store learns of the isolation by its first request, which begins as for READ COMMITTED; later ones don't.
const PROMISES: &str = "
statement       outage     | answer                runs charges record | retry               runs charges
first, enter    refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, enter    cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, enter    cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, look     refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, look     cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, look     cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, ROLLBACK refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, ROLLBACK cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, ROLLBACK cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, again    refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, again    cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
first, again    cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
look and enter  refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
look and enter  cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
look and enter  cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
savepoint       refused    | 503 store_unavailable    0       0 none   | 201 run 1              1       1
savepoint       cut before | 503 store_unavailable    0       0 none   | 201 run 1              1       1
savepoint       cut after  | 503 store_unavailable    0       0 none   | 201 run 1              1       1
replay          refused    | 503 store_unavailable    1       1 201    | 201 run 1, replayed    1       1
replay          cut before | 503 store_unavailable    1       1 201    | 201 run 1, replayed    1       1
replay          cut after  | 503 store_unavailable    1       1 201    | 201 run 1, replayed    1       1
end of a replay refused    | 201 run 1, replayed      1       1 201    | 201 run 1, replayed    1       1
end of a replay cut before | 201 run 1, replayed      1       1 201    | 201 run 1, replayed    1       1
end of a replay cut after  | 201 run 1, replayed      1       1 201    | 201 run 1, replayed    1       1
";

const LOOK_AND_ENTER: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT set_config";
const SAVEPOINT: &str = "SAVEPOINT tower_idempotency";

/// What the store was asked for before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Another key, so that it knows of the isolation.
    Another,
    /// This request, which was answered.
    Same,
}

const POINTS: [(&str, &str, Before); 8] = [
    ("first, enter", OPENING, Before::Nothing),
    ("first, look", OPENING_2, Before::Nothing),
    ("first, ROLLBACK", ROLLBACK, Before::Nothing),
    ("first, again", LOOK_AND_ENTER, Before::Nothing),
    ("look and enter", LOOK_AND_ENTER, Before::Another),
    ("savepoint", SAVEPOINT, Before::Another),
    ("replay", LOOK_AND_ENTER, Before::Same),
    ("end of a replay", ROLLBACK, Before::Same),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_where_a_serializable_transaction_is_opened_there_is_one_charge() {
    let Some(world) = serializable().await else {
        return;
    };
    let lines = POINTS.into_iter().flat_map(|point| {
        let world = &world;
        [Outage::Refused, Outage::CutBefore, Outage::CutAfter]
            .map(move |outage| line(world.clone(), point, outage))
    });
    assert_kept(PROMISES, |_| true, lines).await;
}

async fn line(
    world: World,
    (name, statement, before): (&str, &str, Before),
    outage: Outage,
) -> String {
    let app = App::new(&world, Transaction, 2, Handler::answering(201));
    let account = new_account();
    // The runs of the other request don't count.
    let others = usize::from(before == Before::Another);
    let earlier = match before {
        Before::Nothing => None,
        Before::Another => Some(new_account()),
        Before::Same => Some(account.clone()),
    };
    if let Some(earlier) = earlier {
        drop(app.charge(&earlier).await);
        all_idle(&app.pool).await;
    }
    let strikes = app.proxy.inject(outage.on(statement));
    let asked = app.spawn_charge(&account);
    strikes.struck(1).await;
    outage.struck(&app.proxy);

    let answer = seen(&end(asked).await.expect("no panic"));
    let runs = app.runs.count() - others;
    let charges = world.charges(&account).await;
    let record = recorded(world.record(Transaction, &account).await);
    outage.end(&app.proxy, &strikes).await;
    let retry = seen(&app.retry(&account).await);
    let (all_runs, all_charges) = (app.runs.count() - others, world.charges(&account).await);
    // It was the store's first run for this account, whatever the handler calls it.
    let retry = retry.replace(&format!("run {}", 1 + others), "run 1");
    app.assert_healthy().await;
    let fault = outage.name();
    format!(
        "{name:<15} {fault:<10} | {answer:<21} {runs:>4} {charges:>7} {record:<6} | {retry:<19} {all_runs:>4} {all_charges:>7}"
    )
}
