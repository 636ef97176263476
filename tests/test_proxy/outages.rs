//! Outages of the whole way to the server.

use std::io::ErrorKind;

use sqlx::{Connection as _, Error};

use super::{
    Connection,
    world::{World, broken, end, insert},
};

const ONE: &str = "INSERT INTO t VALUES (1)";

#[tokio::test]
async fn refused_until_it_accepts_again() {
    let Some(mut world) = World::new().await else {
        return;
    };
    for _ in 0..3 {
        let mut tx = world.pool.begin().await.expect("a transaction");
        sqlx::query(ONE).execute(&mut *tx).await.expect("a row");
        world.proxy.refuse();
        assert!(broken(&tx.commit().await));
        let refused = Connection::connect(world.proxy.url()).await;
        let refused = refused.expect_err("refused");
        let Error::Io(refused) = refused else {
            panic!("{refused}");
        };
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        world.proxy.accept();
        assert_eq!(world.rows().await, []);
    }
    world.insert(ONE).await.expect("a row");
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn nothing_gets_through_while_all_hangs() {
    let Some(mut world) = World::new().await else {
        return;
    };
    let start = world.proxy.round_trips();
    world.proxy.hang_all();
    let inserting = tokio::spawn(insert(world.pool.clone(), ONE));
    let url = world.proxy.url().to_owned();
    let connecting = tokio::spawn(async move { Connection::connect(&url).await.map(drop) });
    // It was sent, and the direct way is still open.
    while world.proxy.count("BEGIN") == 0 {
        assert_eq!(world.rows().await, []);
    }
    assert_eq!(world.proxy.round_trips(), start);
    assert!(!inserting.is_finished() && !connecting.is_finished());
    world.proxy.resume();
    end(inserting).await.expect("no panic").expect("a row");
    end(connecting).await.expect("no panic").expect("connected");
    assert_eq!(world.rows().await, [1]);
}

#[tokio::test]
async fn what_hangs_can_be_cut() {
    let Some(mut world) = World::new().await else {
        return;
    };
    world.proxy.hang_all();
    let inserting = tokio::spawn(insert(world.pool.clone(), ONE));
    while world.proxy.count("BEGIN") == 0 {
        tokio::task::yield_now().await;
    }
    world.proxy.cut();
    assert!(broken(&end(inserting).await.expect("no panic")));
    world.proxy.resume();
    world.insert(ONE).await.expect("a row");
    assert_eq!(world.rows().await, [1]);
}
