//! Transactions that lose against another one: what their clients get, and what is left of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::Barrier;
use tower::service_fn;
use tower_idempotency::{RequestBody, Tx, Verdict, store::StoreKind::Transaction};

use super::{
    Backend, DEADLOCK_IS_FOUND_OUT,
    app::App,
    pool::charge_of,
    world::{World, new_account},
};
use crate::{
    network::{end, side_by_side},
    support::{Answer, Body, handler::response},
    table::{recorded, seen},
};

/// What a handler makes of the error of the statement that lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its answer bears the verdict.
    PassedOn,
    /// It goes on, and answers 201.
    Ignored,
    /// It answers 500 and nothing else.
    Failed,
}

/// What a handler is asked for.
pub struct Asked {
    pub tx: Tx<Backend>,
    pub account: String,
    /// Of the balances that it is to change, in this order.
    pub names: Vec<String>,
    /// Of this account.
    pub run: usize,
}

impl Asked {
    pub async fn charge(&mut self) -> Result<(), sqlx::Error> {
        let charge = charge_of(&self.account);
        self.tx.execute(AssertSqlSafe(charge)).await.map(drop)
    }

    pub async fn increase(&mut self, name: &str) -> Result<(), sqlx::Error> {
        let increase = increase_of(name);
        self.tx.execute(AssertSqlSafe(increase)).await.map(drop)
    }
}

pub fn increase_of(name: &str) -> String {
    format!("UPDATE balances SET amount = amount + 1 WHERE name = '{name}'")
}

/// An application whose handler does this, and answers 201 with the number of the account's run.
pub fn app<W, F>(world: &World, retries: u32, lost: Lost, work: W) -> App
where
    W: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), sqlx::Error>> + Send + 'static,
{
    let long = Duration::from_secs(60);
    let settings = |layer: tower_idempotency::IdempotencyLayer| {
        layer
            .with_transaction_retries(retries)
            .with_run_limit(long)
            .with_store_call_limit(long)
    };
    App::around(world, Transaction, 2, settings, |runs, _| {
        let (runs, by_account) = (runs.clone(), Arc::new(Mutex::new(HashMap::new())));
        service_fn(move |request: Request<RequestBody<Body>>| {
            runs.add();
            let (work, by_account) = (work.clone(), Arc::clone(&by_account));
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a whole body").to_bytes();
                let body = String::from_utf8_lossy(&body);
                let account = parts.headers["idempotency-key"].to_str();
                let account = account.expect("an account").to_owned();
                let run = {
                    let mut by_account = by_account.lock().expect("a lock");
                    let run = by_account.entry(account.clone()).or_insert(0);
                    *run += 1;
                    *run
                };
                let asked = Asked {
                    tx: Tx::take(&parts.extensions).expect("a transaction"),
                    account,
                    names: body.split_whitespace().map(str::to_owned).collect(),
                    run,
                };
                let text = format!("run {run}");
                Ok(match work(asked).await {
                    Ok(()) => response(StatusCode::CREATED, text),
                    Err(error) => {
                        let mut failed = response(StatusCode::INTERNAL_SERVER_ERROR, text);
                        let verdict = Verdict::for_error(&error);
                        if let Some(verdict) = verdict.filter(|_| lost == Lost::PassedOn) {
                            failed.extensions_mut().insert(verdict);
                        }
                        failed
                    }
                })
            }
        })
    })
}

/// Two balances of nothing.
pub async fn two_balances(world: &World) -> [String; 2] {
    let names = [new_account(), new_account()];
    for name in &names {
        let insert = format!("INSERT INTO balances (name, amount) VALUES ('{name}', 0)");
        let inserted = world.direct.execute(AssertSqlSafe(insert)).await;
        inserted.expect("a balance");
    }
    names
}

pub async fn balance(world: &World, name: &str) -> i32 {
    let sql = format!("SELECT amount FROM balances WHERE name = '{name}'");
    let amount = sqlx::query_scalar(AssertSqlSafe(sql));
    amount.fetch_one(&world.direct).await.expect("a balance")
}

/// The run had no effect, its key is free, and its client is told so.
pub async fn assert_not_committed(world: &World, account: &str, answer: &Answer) {
    assert_eq!(seen(answer), "503 not_committed");
    assert_eq!(answer.head.headers["retry-after"], "1");
    assert_no_trace(world, account).await;
}

async fn assert_no_trace(world: &World, account: &str) {
    assert_eq!(world.charges(account).await, 0);
    assert_eq!(
        recorded(world.record(Transaction, account).await),
        "none",
        "{account}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_deadlock_one_loses_without_a_trace_and_a_conflict_runs_again() {
    let Some(world) = World::shared().await else {
        return;
    };
    let ways = [Lost::PassedOn, Lost::Ignored, Lost::Failed].into_iter();
    let cases = ways.flat_map(|lost| [(lost, 0), (lost, 1)]);
    side_by_side(cases.map(|(lost, retries)| {
        let world = world.clone();
        async move { deadlock(&world, lost, retries).await }
    }))
    .await;
}

async fn deadlock(world: &World, lost: Lost, retries: u32) {
    let case = format!("{lost:?}, {retries} retries");
    // What the loser gets that isn't run again.
    let refused = match lost {
        Lost::Ignored if !DEADLOCK_IS_FOUND_OUT => "500 handler_failed",
        Lost::Failed if !DEADLOCK_IS_FOUND_OUT => "500 run 1",
        _ => "503 not_committed",
    };
    let is_conflict = refused == "503 not_committed";
    let meeting = Arc::new(Barrier::new(2));
    let app = app(world, retries, lost, move |asked| {
        opposed(asked, lost, Arc::clone(&meeting))
    });
    let [a, b] = two_balances(world).await;
    let requests = [
        (new_account(), format!("{a} {b}")),
        (new_account(), format!("{b} {a}")),
    ];
    let [(one, there), (other, back)] = &requests;
    let (first, second) = tokio::join!(app.ask(one, there), app.ask(other, back));
    let mut told = [seen(&first), seen(&second)];
    told.sort();
    let answers = requests.iter().zip([first, second]);
    if retries == 0 || !is_conflict {
        assert_eq!(told, ["201 run 1", refused], "{case}");
        assert_eq!(app.runs.count(), 2, "{case}");
        for (name, which) in [(&a, "first"), (&b, "second")] {
            assert_eq!(balance(world, name).await, 1, "{case}: {which}");
        }
        for ((account, names), answer) in answers {
            let retry = if answer.status() == StatusCode::CREATED {
                "201 run 1, replayed"
            } else {
                assert_no_trace(world, account).await;
                let again = answer.head.headers.get("retry-after");
                assert_eq!(again.is_some_and(|after| after == "1"), is_conflict);
                "201 run 2"
            };
            assert_eq!(seen(&app.ask(account, names).await), retry, "{case}");
        }
    } else {
        assert_eq!(told, ["201 run 1", "201 run 2"], "{case}");
        for ((account, names), answer) in answers {
            let retry = app.ask(account, names).await;
            assert_eq!(seen(&retry), format!("{}, replayed", seen(&answer)));
        }
    }
    assert_eq!(app.runs.count(), 3, "{case}");
    for (account, _) in &requests {
        assert_eq!(world.charges(account).await, 1, "{case}");
    }
    for name in [a, b] {
        assert_eq!(balance(world, &name).await, 2, "{case}");
    }
    app.assert_healthy().await;
}

/// Charges, and increases two balances; in the first run, the second one only when the rival has increased it.
async fn opposed(mut asked: Asked, lost: Lost, meeting: Arc<Barrier>) -> Result<(), sqlx::Error> {
    asked.charge().await?;
    let names = asked.names.clone();
    let [first, second] = &names[..] else {
        return Ok(());
    };
    asked.increase(first).await?;
    if asked.run == 1 {
        end(meeting.wait()).await;
    }
    match asked.increase(second).await {
        // Not a word of it: and what is written now, if it can be, must not stay either.
        Err(_) if lost == Lost::Ignored => {
            drop(asked.charge().await);
            Ok(())
        }
        result => result,
    }
}
