//! A lock that another session keeps for too long, and which errors of the server are conflicts.

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, mysql::MySqlDatabaseError};
use tower_idempotency::Verdict;

use super::{
    Pool,
    conflicts::{Asked, Lost, app, assert_not_committed, balance, increase_of, two_balances},
    world::{World, new_account},
};
use crate::{
    network::{end, side_by_side},
    servers::tell,
    support::handler::Gate,
    table::seen,
};

/// Rather than 50 seconds.
const SHORT_WAIT: &str = "SET SESSION innodb_lock_wait_timeout = 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_waited_for_in_vain_is_a_conflict() {
    let Some(world) = World::shared().await else {
        return;
    };
    for retries in [0, 1] {
        let gate = Gate::closed();
        let at_second_run = gate.clone();
        let app = app(&world, retries, Lost::PassedOn, move |mut asked| {
            let gate = at_second_run.clone();
            async move {
                if asked.run == 2 {
                    gate.pass().await;
                }
                asked.charge().await?;
                asked.tx.execute(SHORT_WAIT).await?;
                let name = asked.names[0].clone();
                asked.increase(&name).await
            }
        });
        let ([name, _], account) = (two_balances(&world).await, new_account());
        let mut rival = world.direct.begin().await.expect("a transaction");
        let increase = AssertSqlSafe(increase_of(&name));
        rival.execute(increase).await.expect("a lock");

        let asked = tokio::spawn({
            let (app, account, name) = (app.clone(), account.clone(), name.clone());
            async move { app.ask(&account, &name).await }
        });
        let asked = if retries == 0 {
            let answer = end(asked).await.expect("no panic");
            assert_not_committed(&world, &account, &answer).await;
            let (app, account, name) = (app.clone(), account.clone(), name.clone());
            tokio::spawn(async move { app.ask(&account, &name).await })
        } else {
            asked
        };
        end(gate.reached()).await;
        rival.rollback().await.expect("a rollback");
        gate.open();
        let answer = end(asked).await.expect("no panic");
        assert_eq!(seen(&answer), "201 run 2", "{retries} retries");
        let again = app.ask(&account, &name).await;
        assert_eq!(seen(&again), "201 run 2, replayed");
        assert_eq!((app.runs.count(), world.charges(&account).await), (2, 1));
        assert_eq!(balance(&world, &name).await, 1);
        app.assert_healthy().await;
    }
}

/// MariaDB from 11.6.2 on doesn't let a transaction write over what another one has committed since it first read, and undoes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_over_a_newer_row_is_a_conflict() {
    let Some(world) = World::shared().await else {
        return;
    };
    let settings = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'";
    let settings = sqlx::raw_sql(settings).fetch_all(&world.direct).await;
    if settings.expect("settings").is_empty() {
        return tell("SKIPPED: the server has no innodb_snapshot_isolation");
    }
    let ways = [Lost::PassedOn, Lost::Ignored, Lost::Failed].into_iter();
    let cases = ways.flat_map(|lost| [(lost, 0), (lost, 1)]);
    side_by_side(cases.map(|(lost, retries)| {
        let world = world.clone();
        async move { newer_row(&world, lost, retries).await }
    }))
    .await;
}

async fn newer_row(world: &World, lost: Lost, retries: u32) {
    let case = format!("{lost:?}, {retries} retries");
    let direct = world.direct.clone();
    let app = app(world, retries, lost, move |asked| {
        overtaken(asked, lost, direct.clone())
    });
    let ([name, _], account) = (two_balances(world).await, new_account());
    let mut answer = app.ask(&account, &name).await;
    if retries == 0 {
        assert_not_committed(world, &account, &answer).await;
        answer = app.ask(&account, &name).await;
    }
    assert_eq!(seen(&answer), "201 run 2", "{case}");
    let again = app.ask(&account, &name).await;
    assert_eq!(seen(&again), "201 run 2, replayed", "{case}");
    assert_eq!((app.runs.count(), world.charges(&account).await), (2, 1));
    assert_eq!(balance(world, &name).await, 2, "{case}");
    app.assert_healthy().await;
}

/// Charges, reads a balance, and increases it; in the first run, after somebody else has.
async fn overtaken(mut asked: Asked, lost: Lost, direct: Pool) -> Result<(), sqlx::Error> {
    let settings = "SET SESSION innodb_snapshot_isolation = ON";
    asked.tx.execute(settings).await?;
    asked.charge().await?;
    asked.tx.execute("SELECT * FROM balances").await?;
    let name = asked.names[0].clone();
    if asked.run == 1 {
        direct.execute(AssertSqlSafe(increase_of(&name))).await?;
    }
    match asked.increase(&name).await {
        // And what is written now must not stay either.
        Err(_) if lost == Lost::Ignored => {
            drop(asked.charge().await);
            Ok(())
        }
        result => result,
    }
}

/// The number of an error, and what it says of the answer.
fn verdict(result: Result<impl Sized, sqlx::Error>) -> (u16, Option<Verdict>) {
    let error = result.err().expect("an error");
    let database = error.as_database_error().expect("the server's");
    let number = database.downcast_ref::<MySqlDatabaseError>().number();
    (number, Verdict::for_error(&error))
}

#[tokio::test]
async fn errors_of_transactions_that_lost_are_conflicts_and_others_are_not() {
    let Some(world) = World::shared().await else {
        return;
    };
    let conflict = Some(Verdict::Conflict);
    let [a, b] = two_balances(&world).await;
    let [first, second] = [&a, &b].map(|name| increase_of(name));
    let connect = || MySqlConnection::connect(&world.url);
    let mut one = connect().await.expect("a connection");
    let mut other = connect().await.expect("a connection");

    one.execute("BEGIN").await.expect("a transaction");
    other.execute("BEGIN").await.expect("a transaction");
    let (locks, locks_too) = (first.clone(), second.clone());
    one.execute(AssertSqlSafe(locks)).await.expect("a lock");
    let locked = other.execute(AssertSqlSafe(locks_too)).await;
    locked.expect("a lock");
    let (here, there) = tokio::join!(
        end(one.execute(AssertSqlSafe(second.clone()))),
        end(other.execute(AssertSqlSafe(first.clone()))),
    );
    let deadlock = if here.is_err() { here } else { there };
    assert_eq!(verdict(deadlock), (1213, conflict));
    for connection in [&mut one, &mut other] {
        connection.execute("ROLLBACK").await.expect("a rollback");
    }

    one.execute("BEGIN").await.expect("a transaction");
    let locked = one.execute(AssertSqlSafe(first.clone())).await;
    locked.expect("a lock");
    other.execute(SHORT_WAIT).await.expect("a setting");
    let waited = other.execute(AssertSqlSafe(first.clone())).await;
    assert_eq!(verdict(waited), (1205, conflict));
    one.execute("ROLLBACK").await.expect("a rollback");

    // MariaDB from 10.6.18, 10.11.8 and so on.
    let isolate = "SET SESSION innodb_snapshot_isolation = ON";
    if one.execute(isolate).await.is_ok() {
        one.execute("BEGIN").await.expect("a transaction");
        let read = one.execute("SELECT * FROM balances").await;
        read.expect("a snapshot");
        let written = other.execute(AssertSqlSafe(first.clone())).await;
        written.expect("a newer row");
        let stale = one.execute(AssertSqlSafe(first.clone())).await;
        assert_eq!(verdict(stale), (1020, conflict));
        one.execute("ROLLBACK").await.expect("a rollback");
    }

    let twice = format!("INSERT INTO balances (name, amount) VALUES ('{a}', 0)");
    let duplicate = one.execute(AssertSqlSafe(twice)).await;
    assert_eq!(verdict(duplicate), (1062, None));
}
