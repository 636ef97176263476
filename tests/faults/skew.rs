//! Transactions that are serializable, of which one loses by what it read, and which errors of the server are conflicts.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::Barrier;
use tower_idempotency::Verdict;

use super::{
    conflicts::{Asked, Lost, app, assert_not_committed, balance, increase_of, two_balances},
    shared_server,
    statement::COMMIT,
    world::{World, new_account},
};
use crate::{
    network::{Outage, end, side_by_side},
    support::handler::Gate,
    table::seen,
};

/// A database whose transactions are serializable.
pub async fn serializable() -> Option<World> {
    let world = World::on(shared_server()?).await;
    let database: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&world.direct)
        .await
        .expect("a name");
    let isolate =
        format!("ALTER DATABASE {database} SET default_transaction_isolation = serializable");
    let isolated = world.direct.execute(AssertSqlSafe(isolate)).await;
    isolated.expect("a setting");
    Some(world)
}

/// Where the one that loses stands when the other commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// Before a statement of its handler.
    InMidRun,
    /// Before its record is written.
    Answered,
    /// Before its COMMIT arrives.
    AtCommit,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_skew_is_a_conflict_wherever_it_is_found() {
    let places = [Stands::InMidRun, Stands::Answered, Stands::AtCommit];
    let cases = places
        .into_iter()
        .flat_map(|place| [(place, 0), (place, 1)]);
    side_by_side(cases.map(|(place, retries)| async move {
        if let Some(world) = serializable().await {
            skew(&world, place, retries).await;
        }
    }))
    .await;
}

async fn skew(world: &World, place: Stands, retries: u32) {
    let case = format!("{place:?}, {retries} retries");
    let (read, gate) = (Arc::new(Barrier::new(2)), Gate::closed());
    let slow = {
        let (read, gate) = (Arc::clone(&read), gate.clone());
        app(world, retries, Lost::PassedOn, move |asked| {
            skewed(asked, Arc::clone(&read), (place, gate.clone()))
        })
    };
    let rivals_gate = Gate::closed();
    let fast = {
        let gate = rivals_gate.clone();
        app(world, 0, Lost::PassedOn, move |asked| {
            skewed(asked, Arc::clone(&read), (Stands::Answered, gate.clone()))
        })
    };
    let ([a, b], loser, winner) = (two_balances(world).await, new_account(), new_account());
    let names = format!("{a} {b}");
    // One has passed by then, in the statement that begins the transaction.
    let hangs = Outage::Hangs.on(COMMIT).after(1);
    let strikes = (place == Stands::AtCommit).then(|| slow.proxy.inject(hangs));
    let asked = tokio::spawn({
        let (slow, loser, names) = (slow.clone(), loser.clone(), names.clone());
        async move { slow.ask(&loser, &names).await }
    });
    let rival = tokio::spawn({
        let (fast, winner, names) = (fast.clone(), winner.clone(), format!("{b} {a}"));
        async move { fast.ask(&winner, &names).await }
    });
    // The winner commits only when the loser stands where it is to stand.
    match &strikes {
        Some(strikes) => strikes.struck(1).await,
        None => end(gate.reached()).await,
    }
    rivals_gate.open();
    let rival = end(rival).await.expect("no panic");
    assert_eq!(seen(&rival), "201 run 1", "{case}");
    gate.open();
    slow.proxy.resume();
    let answer = end(asked).await.expect("no panic");
    if retries == 0 {
        assert_not_committed(world, &loser, &answer).await;
        assert_eq!((balance(world, &a).await, slow.runs.count()), (0, 1));
        let retry = slow.ask(&loser, &names).await;
        assert_eq!(seen(&retry), "201 run 2", "{case}");
    } else {
        assert_eq!(seen(&answer), "201 run 2", "{case}");
        let retry = slow.ask(&loser, &names).await;
        assert_eq!(seen(&retry), "201 run 2, replayed", "{case}");
    }
    assert_eq!(slow.runs.count(), 2, "{case}");
    for account in [&loser, &winner] {
        assert_eq!(world.charges(account).await, 1, "{case}");
    }
    for name in [&a, &b] {
        assert_eq!(balance(world, name).await, 1, "{case}");
    }
    slow.assert_healthy().await;
}

/// Charges, reads two balances and increases the first. In the first run, both have read before one of them writes.
async fn skewed(
    mut asked: Asked,
    read: Arc<Barrier>,
    (place, gate): (Stands, Gate),
) -> Result<(), sqlx::Error> {
    asked.charge().await?;
    let names = asked.names.clone();
    let [first, second] = &names[..] else {
        return Ok(());
    };
    let sum = format!("SELECT sum(amount) FROM balances WHERE name IN ('{first}', '{second}')");
    asked.tx.execute(AssertSqlSafe(sum)).await?;
    let is_first = asked.run == 1;
    if is_first {
        end(read.wait()).await;
    }
    if is_first && place == Stands::InMidRun {
        gate.pass().await;
    }
    asked.increase(first).await?;
    if is_first && place == Stands::Answered {
        gate.pass().await;
    }
    Ok(())
}

/// The state of an error, and what it says of the answer.
fn verdict(result: Result<impl Sized, sqlx::Error>) -> (String, Option<Verdict>) {
    let error = result.err().expect("an error");
    let database = error.as_database_error().expect("the server's");
    let state = database.code().expect("a state").into_owned();
    (state, Verdict::for_error(&error))
}

#[tokio::test]
async fn errors_of_transactions_that_lost_are_conflicts_and_others_are_not() {
    let Some(world) = World::shared().await else {
        return;
    };
    let conflict = Some(Verdict::Conflict);
    let [a, b] = two_balances(&world).await;
    let [first, second] = [&a, &b].map(|name| increase_of(name));
    let connect = || PgConnection::connect(&world.url);
    let mut one = connect().await.expect("a connection");
    let mut other = connect().await.expect("a connection");
    let rolls_back = async |connection: &mut PgConnection| {
        connection.execute("ROLLBACK").await.expect("a rollback");
    };

    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    one.execute(begin).await.expect("a transaction");
    let read = one.execute("SELECT * FROM balances").await;
    read.expect("a snapshot");
    let written = other.execute(AssertSqlSafe(first.clone())).await;
    written.expect("a newer row");
    let stale = one.execute(AssertSqlSafe(first.clone())).await;
    assert_eq!(verdict(stale), ("40001".to_owned(), conflict));
    rolls_back(&mut one).await;

    one.execute("BEGIN").await.expect("a transaction");
    other.execute("BEGIN").await.expect("a transaction");
    let locked = one.execute(AssertSqlSafe(first.clone())).await;
    locked.expect("a lock");
    let locked = other.execute(AssertSqlSafe(second.clone())).await;
    locked.expect("a lock");
    let (here, there) = tokio::join!(
        end(one.execute(AssertSqlSafe(second.clone()))),
        end(other.execute(AssertSqlSafe(first.clone()))),
    );
    let deadlock = if here.is_err() { here } else { there };
    assert_eq!(verdict(deadlock), ("40P01".to_owned(), conflict));
    rolls_back(&mut one).await;
    rolls_back(&mut other).await;

    one.execute("BEGIN").await.expect("a transaction");
    let locked = one.execute(AssertSqlSafe(first.clone())).await;
    locked.expect("a lock");
    let short = other.execute("SET lock_timeout = '100ms'").await;
    short.expect("a setting");
    let waited = other.execute(AssertSqlSafe(first.clone())).await;
    assert_eq!(verdict(waited), ("55P03".to_owned(), None));
    rolls_back(&mut one).await;

    let twice = format!("INSERT INTO balances (name, amount) VALUES ('{a}', 0)");
    let duplicate = one.execute(AssertSqlSafe(twice)).await;
    assert_eq!(verdict(duplicate), ("23505".to_owned(), None));
}
