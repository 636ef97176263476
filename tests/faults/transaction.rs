//! The promises of a transaction store: exactly one charge, whatever fails.

use tower_idempotency::store::StoreKind::Transaction;

use super::{
    app::{App, Handler},
    pool::{CHARGE, all_idle},
    statement::{
        COMMIT, LOOKED_UP, OPENING, OPENING_2, RECORD, REPLAY_2, ROLLBACK, UNDO, VERIFICATION,
    },
    world::{World, new_account},
};
use crate::{
    network::{Outage, end},
    table::{assert_kept, recorded, seen},
};

/// Which statement meets what | what the request gets, how often the handler has run then, what it has charged, and what is
/// recorded | what the same request gets while the outage goes on | what it gets afterwards, and how often the handler ran and
/// charged in all.
///
/// A reservation takes two round trips, and so does a replay. A proof is what a lost COMMIT is followed by. Only Postgres is sent a
/// ROLLBACK apart from the undo.
const PROMISES: &str = "
statement      outage     | answer                runs charges record | meanwhile             | retry               runs charges
opening 1      refused    | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 1      hangs      | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 1      cut before | 503 store_unavailable    0       0 none   | -                     | 201 run 1              1       1
opening 1      cut after  | 503 store_unavailable    0       0 none   | -                     | 201 run 1              1       1
opening 1      swallowed  | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 1      late       | 503 store_unavailable    0       0 none   | 201 run 1             | 201 run 1, replayed    1       1
opening 2      refused    | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 2      hangs      | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 2      cut before | 503 store_unavailable    0       0 none   | -                     | 201 run 1              1       1
opening 2      cut after  | 503 store_unavailable    0       0 none   | -                     | 201 run 1              1       1
opening 2      swallowed  | 503 store_unavailable    0       0 none   | 503 store_unavailable | 201 run 1              1       1
opening 2      late       | 503 store_unavailable    0       0 none   | 409 in_flight         | 201 run 1              1       1
charge         refused    | 500 run 1 failed         1       0 none   | 503 store_unavailable | 201 run 2              2       1
charge         hangs      | 504 run_limit            1       0 none   | 409 in_flight         | 201 run 2              2       1
charge         cut before | 500 run 1 failed         1       0 none   | -                     | 201 run 2              2       1
charge         cut after  | 500 run 1 failed         1       0 none   | -                     | 201 run 2              2       1
charge         swallowed  | 504 run_limit            1       0 none   | 409 in_flight         | 201 run 2              2       1
charge         late       | 500 run 1 failed         1       0 none   | 409 in_flight         | 201 run 2              2       1
record         refused    | 503 not_committed        1       0 none   | 503 store_unavailable | 201 run 2              2       1
record         hangs      | 503 outcome_pending      1       0 none   | 409 in_flight         | 201 run 1, replayed    1       1
record         cut before | 503 not_committed        1       0 none   | -                     | 201 run 2              2       1
record         cut after  | 503 not_committed        1       0 none   | -                     | 201 run 2              2       1
record         swallowed  | 503 outcome_pending      1       0 none   | 409 in_flight         | 201 run 1, replayed    1       1
record         late       | 503 not_committed        1       0 none   | 409 in_flight         | 201 run 2              2       1
COMMIT         refused    | 503 outcome_pending      1       0 none   | 503 store_unavailable | 201 run 2              2       1
COMMIT         hangs      | 503 outcome_pending      1       0 none   | 409 in_flight         | 201 run 1, replayed    1       1
COMMIT         cut before | 503 not_committed        1       0 none   | -                     | 201 run 2              2       1
COMMIT         cut after  | 201 run 1                1       1 201    | -                     | 201 run 1, replayed    1       1
COMMIT         swallowed  | 503 outcome_pending      1       1 201    | 409 in_flight         | 201 run 1, replayed    1       1
COMMIT         late       | 503 outcome_pending      1       0 none   | 409 in_flight         | 201 run 1, replayed    1       1
proof that not refused    | 503 outcome_pending      1       0 none   | 503 store_unavailable | 201 run 2              2       1
proof that not hangs      | 503 outcome_pending      1       0 none   | 201 run 2             | 201 run 2, replayed    2       1
proof that not cut before | 503 outcome_pending      1       0 none   | -                     | 201 run 2              2       1
proof that not cut after  | 503 outcome_pending      1       0 none   | -                     | 201 run 2              2       1
proof that not swallowed  | 503 outcome_pending      1       0 none   | 201 run 2             | 201 run 2, replayed    2       1
proof that not late       | 503 outcome_pending      1       0 none   | 201 run 2             | 201 run 2, replayed    2       1
proof that so  refused    | 503 outcome_pending      1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
proof that so  hangs      | 503 outcome_pending      1       1 201    | 201 run 1, replayed   | 201 run 1, replayed    1       1
proof that so  cut before | 503 outcome_pending      1       1 201    | -                     | 201 run 1, replayed    1       1
proof that so  cut after  | 503 outcome_pending      1       1 201    | -                     | 201 run 1, replayed    1       1
proof that so  swallowed  | 503 outcome_pending      1       1 201    | 201 run 1, replayed   | 201 run 1, replayed    1       1
proof that so  late       | 503 outcome_pending      1       1 201    | 201 run 1, replayed   | 201 run 1, replayed    1       1
undo of 422    refused    | 422 run 1                1       0 none   | 503 store_unavailable | 201 run 2              2       1
undo of 422    hangs      | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
undo of 422    cut before | 422 run 1                1       0 none   | -                     | 201 run 2              2       1
undo of 422    cut after  | 422 run 1                1       0 none   | -                     | 201 run 2              2       1
undo of 422    swallowed  | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
undo of 422    late       | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
undo of 502    refused    | 502 run 1                1       0 none   | 503 store_unavailable | 201 run 2              2       1
undo of 502    hangs      | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
undo of 502    cut before | 502 run 1                1       0 none   | -                     | 201 run 2              2       1
undo of 502    cut after  | 502 run 1                1       0 none   | -                     | 201 run 2              2       1
undo of 502    swallowed  | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
undo of 502    late       | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 422   refused    | 422 run 1                1       0 none   | 503 store_unavailable | 201 run 2              2       1
ROLLBACK 422   hangs      | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 422   cut before | 422 run 1                1       0 none   | -                     | 201 run 2              2       1
ROLLBACK 422   cut after  | 422 run 1                1       0 none   | -                     | 201 run 2              2       1
ROLLBACK 422   swallowed  | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 422   late       | 422 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 502   refused    | 502 run 1                1       0 none   | 503 store_unavailable | 201 run 2              2       1
ROLLBACK 502   hangs      | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 502   cut before | 502 run 1                1       0 none   | -                     | 201 run 2              2       1
ROLLBACK 502   cut after  | 502 run 1                1       0 none   | -                     | 201 run 2              2       1
ROLLBACK 502   swallowed  | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
ROLLBACK 502   late       | 502 run 1                1       0 none   | 409 in_flight         | 201 run 2              2       1
replay 1       refused    | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 1       hangs      | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 1       cut before | 503 store_unavailable    1       1 201    | -                     | 201 run 1, replayed    1       1
replay 1       cut after  | 503 store_unavailable    1       1 201    | -                     | 201 run 1, replayed    1       1
replay 1       swallowed  | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 1       late       | 503 store_unavailable    1       1 201    | 201 run 1, replayed   | 201 run 1, replayed    1       1
replay 2       refused    | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 2       hangs      | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 2       cut before | 503 store_unavailable    1       1 201    | -                     | 201 run 1, replayed    1       1
replay 2       cut after  | 503 store_unavailable    1       1 201    | -                     | 201 run 1, replayed    1       1
replay 2       swallowed  | 503 store_unavailable    1       1 201    | 503 store_unavailable | 201 run 1, replayed    1       1
replay 2       late       | 503 store_unavailable    1       1 201    | 201 run 1, replayed   | 201 run 1, replayed    1       1
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_there_is_one_charge() {
    let Some(world) = World::shared().await else {
        return;
    };
    let points = POINTS.iter().filter(|point| !point.statement.is_empty());
    let lines = points.flat_map(|point| {
        let world = &world;
        Outage::ALL.map(move |outage| line(world.clone(), point, outage))
    });
    let is_sent = |line: &str| !ROLLBACK.is_empty() || !line.starts_with("ROLLBACK");
    assert_kept(PROMISES, is_sent, lines).await;
}

/// A statement of a request.
struct Point {
    name: &'static str,
    /// A part of it; nothing if this backend doesn't send it.
    statement: &'static str,
    /// How many come before that contain the same.
    passes: usize,
    /// What the handler answers, having charged.
    status: u16,
    before: Before,
}

/// What came before that statement.
enum Before {
    Nothing,
    /// The same request, which was answered.
    Answered,
    /// A COMMIT that met this.
    Lost(Outage),
}

const fn point(name: &'static str, statement: &'static str) -> Point {
    Point {
        name,
        statement,
        passes: 0,
        status: 201,
        before: Before::Nothing,
    }
}

const POINTS: [Point; 13] = [
    point("opening 1", OPENING),
    point("opening 2", OPENING_2),
    point("charge", CHARGE),
    point("record", RECORD),
    point("COMMIT", COMMIT),
    Point {
        before: Before::Lost(Outage::CutBefore),
        ..point("proof that not", VERIFICATION)
    },
    Point {
        before: Before::Lost(Outage::CutAfter),
        ..point("proof that so", LOOKED_UP)
    },
    Point {
        status: 422,
        ..point("undo of 422", UNDO)
    },
    Point {
        status: 502,
        ..point("undo of 502", UNDO)
    },
    Point {
        status: 422,
        passes: 1,
        ..point("ROLLBACK 422", ROLLBACK)
    },
    Point {
        status: 502,
        passes: 1,
        ..point("ROLLBACK 502", ROLLBACK)
    },
    Point {
        before: Before::Answered,
        ..point("replay 1", OPENING)
    },
    Point {
        before: Before::Answered,
        ..point("replay 2", REPLAY_2)
    },
];

async fn line(world: World, point: &Point, outage: Outage) -> String {
    let app = App::new(&world, Transaction, 2, Handler::answering(point.status));
    let account = new_account();
    match point.before {
        Before::Nothing => {}
        Before::Answered => {
            drop(app.charge(&account).await);
            all_idle(&app.pool).await;
        }
        Before::Lost(lost) => drop(app.proxy.inject(lost.on(COMMIT))),
    }
    let strikes = app
        .proxy
        .inject(outage.on(point.statement).after(point.passes));
    let mut asked = app.spawn_charge(&account);
    tokio::select! {
        biased;
        () = strikes.struck(1) => outage.struck(&app.proxy),
        answer = &mut asked => panic!("{}, {}: not sent before {answer:?}", point.name, outage.name()),
    }

    let answer = seen(&end(asked).await.expect("no panic"));
    let runs = app.runs.count();
    let charges = world.charges(&account).await;
    let record = recorded(world.record(Transaction, &account).await);
    let meanwhile = if outage.lasts() {
        seen(&app.charge(&account).await)
    } else {
        "-".to_owned()
    };
    outage.end(&app.proxy, &strikes).await;
    let retry = seen(&app.retry(&account).await);
    let (all_runs, all_charges) = (app.runs.count(), world.charges(&account).await);
    app.assert_healthy().await;
    let (name, fault) = (point.name, outage.name());
    format!(
        "{name:<14} {fault:<10} | {answer:<21} {runs:>4} {charges:>7} {record:<6} | {meanwhile:<21} | {retry:<19} {all_runs:>4} {all_charges:>7}"
    )
}
