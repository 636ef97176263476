//! Each fault, at a statement and at a commit.

use std::time::Duration;

use sqlx::Connection as _;

use super::{
    Connection,
    world::{LIMIT, World, broken, end, insert},
};
use crate::servers::Fault;

const ONE: &str = "INSERT INTO t VALUES (1)";

#[tokio::test]
async fn cut_before_a_commit_nothing_was_committed() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let strikes = world.proxy.inject(Fault::CutBefore.on("COMMIT"));
    assert!(broken(&world.insert(ONE).await));
    assert_eq!(strikes.count(), 1);
    assert_eq!(world.rows().await, []);
    // The pool connects again, and waits for the lost transaction's end if it must.
    world.insert(ONE).await.expect("a row");
    assert_eq!((world.rows().await, strikes.count()), (vec![1], 1));
}

#[tokio::test]
async fn cut_after_a_commit_it_was_committed() {
    let Some(mut world) = World::new().await else {
        return;
    };
    for (sql, rows) in [(ONE, vec![1]), ("INSERT INTO t VALUES (2)", vec![1, 2])] {
        let strikes = world.proxy.inject(Fault::CutAfter.on("COMMIT"));
        assert!(broken(&world.insert(sql).await));
        assert_eq!(world.rows().await, rows);
        end(strikes.struck(1)).await;
    }
    world.pool.acquire().await.expect("a new connection");
}

#[tokio::test]
async fn cut_after_a_prepared_statement_it_was_executed() {
    let Some(mut world) = World::new().await else {
        return;
    };
    for persistent in [true, false] {
        world.proxy.inject(Fault::CutAfter.on("INSERT"));
        let inserted = sqlx::query(ONE)
            .persistent(persistent)
            .execute(&world.pool)
            .await;
        assert!(broken(&inserted.map(drop)));
        assert_eq!(world.rows().await, [1]);
        sqlx::query("DELETE FROM t")
            .execute(&mut world.direct)
            .await
            .expect("no row");
    }
    // Not only the first execution of a connection, which follows its preparation.
    world.insert(ONE).await.expect("a row");
    sqlx::query("DELETE FROM t")
        .execute(&mut world.direct)
        .await
        .expect("no row");
    world.proxy.inject(Fault::CutAfter.on("INSERT"));
    let inserted = sqlx::query(ONE).execute(&world.pool).await;
    assert!(broken(&inserted.map(drop)));
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn what_a_cut_off_client_has_sent_is_executed_when_it_is_let_go() {
    let Some(mut world) = World::new().await else {
        return;
    };
    for (sql, rows) in [(ONE, vec![1]), ("INSERT INTO t VALUES (2)", vec![1, 2])] {
        let before = world.rows().await;
        let strikes = world.proxy.inject(Fault::CutClient.on("COMMIT"));
        assert!(broken(&end(world.insert(sql)).await));
        assert_eq!((world.rows().await, strikes.count()), (before, 1));
        world.proxy.resume();
        end(strikes.struck(2)).await;
        assert_eq!(world.rows().await, rows);
        world.pool.acquire().await.expect("a new connection");
    }
}

#[tokio::test]
async fn a_swallowed_reply_comes_when_it_is_let_go() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let strikes = world.proxy.inject(Fault::SwallowReply.on("COMMIT"));
    let inserting = tokio::spawn(insert(world.pool.clone(), ONE));
    end(strikes.struck(1)).await;
    assert_eq!(world.rows().await, [1]);
    assert!(!inserting.is_finished());
    world.proxy.resume();
    end(inserting).await.expect("no panic").expect("committed");
    let next = world.insert("INSERT INTO t VALUES (2)").await;
    next.expect("the same connection");
}

#[tokio::test]
async fn a_swallowed_reply_can_be_lost() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let strikes = world.proxy.inject(Fault::SwallowReply.on("COMMIT"));
    let inserting = tokio::spawn(insert(world.pool.clone(), ONE));
    end(strikes.struck(1)).await;
    world.proxy.cut();
    assert!(broken(&end(inserting).await.expect("no panic")));
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn a_hanging_statement_reaches_the_server_when_it_is_let_go() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let strikes = world.proxy.inject(Fault::Hang.on("COMMIT"));
    let inserting = tokio::spawn(insert(world.pool.clone(), ONE));
    end(strikes.struck(1)).await;
    assert_eq!(world.rows().await, []);
    assert!(!inserting.is_finished());
    world.proxy.resume();
    end(inserting).await.expect("no panic").expect("committed");
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn the_server_does_not_learn_that_the_client_of_a_hanging_statement_is_gone() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let zero = world.insert("INSERT INTO t VALUES (0)").await;
    zero.expect("a row");
    let strikes = world.proxy.inject(Fault::Hang.on("COMMIT"));
    let mut connection = Connection::connect(world.proxy.url())
        .await
        .expect("a connection");
    let updating = tokio::spawn(async move {
        let mut tx = connection.begin().await?;
        sqlx::query("UPDATE t SET n = 0").execute(&mut *tx).await?;
        tx.commit().await
    });
    end(strikes.struck(1)).await;
    // And with it its connection.
    updating.abort();
    assert!(end(updating).await.expect_err("aborted").is_cancelled());
    assert!(world.is_locked().await);
    world.proxy.cut();
    world.unlocked().await;
    assert_eq!(world.rows().await, [0]);
}

#[tokio::test]
async fn a_delayed_statement_is_executed_later_or_never() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let delay = Duration::from_millis(1);
    let strikes = world.proxy.inject(Fault::Delay(delay).on("COMMIT"));
    end(world.insert(ONE)).await.expect("a row");
    assert_eq!((world.rows().await, strikes.count()), (vec![1], 1));

    let strikes = world.proxy.inject(Fault::Delay(LIMIT * 60).on("COMMIT"));
    let two = "INSERT INTO t VALUES (2)";
    let inserting = tokio::spawn(insert(world.pool.clone(), two));
    end(strikes.struck(1)).await;
    world.proxy.cut();
    assert!(broken(&end(inserting).await.expect("no panic")));
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn a_rule_strikes_the_executions_that_it_names() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let rule = Fault::CutBefore.on("INSERT").after(1).times(2);
    let strikes = world.proxy.inject(rule);
    let mut fates = Vec::new();
    for _ in 0..5 {
        let inserted = sqlx::query("INSERT INTO t VALUES (1)")
            .execute(&world.pool)
            .await;
        fates.push(broken(&inserted.map(drop)));
        sqlx::query("DELETE FROM t")
            .execute(&world.pool)
            .await
            .expect("no row");
    }
    assert_eq!(fates, [false, true, true, false, false]);
    assert_eq!(strikes.count(), 2);

    let strikes = world.proxy.inject(Fault::CutBefore.on("INSERT").always());
    for _ in 0..3 {
        assert!(broken(&world.insert(ONE).await));
    }
    assert_eq!(strikes.count(), 3);
    world.proxy.heal();
    world.insert(ONE).await.expect("a row");
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn a_rollback_that_sqlx_sends_by_itself_can_be_cut() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let zero = world.insert("INSERT INTO t VALUES (0)").await;
    zero.expect("a row");
    let strikes = world.proxy.inject(Fault::CutBefore.on("ROLLBACK"));
    let mut tx = world.pool.begin().await.expect("a transaction");
    sqlx::query("UPDATE t SET n = 0")
        .execute(&mut *tx)
        .await
        .expect("a row");
    drop(tx);
    end(strikes.struck(1)).await;
    world.unlocked().await;
    world.insert(ONE).await.expect("a row");
    assert_eq!(world.rows().await, [0, 1]);
}
