//! A server without room: it refuses new keys, and whoever has a claim can end it.

use tower::Layer;
use tower_idempotency::{
    Drain, IdempotencyLayer, RejectionKind, ScopeBy, StoreErrorKind,
    store::{Note, Reservation, Steps, Store},
};

use crate::{
    redis_support::*,
    servers::Redis,
    support::{
        Body, post,
        probe::{Probe, spawn_send},
        send,
    },
};

/// Takes away all room: the server has far more in its memory than it may.
fn fill(server: &Redis) {
    server
        .run::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let refused = server.run::<()>(&["SET", "filler", "x"]).unwrap_err();
    assert_eq!(refused.code(), Some("OOM"));
}

fn make_room(server: &Redis) {
    server
        .run::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
}

#[tokio::test]
async fn a_full_server_refuses_new_keys_and_ends_what_it_has() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let keys = [(); 5].map(|()| fresh_key());
    let [done, running, renewed, released, abandoned] = &keys;
    let claimed = claim(&store, done, &terms()).await;
    store
        .complete(&claimed, &response("before"), RETENTION)
        .await
        .unwrap();
    let running_claim = claim(&store, running, &terms()).await;
    let renewed_claim = claim(&store, renewed, &terms()).await;
    let released_claim = claim(&store, released, &terms()).await;
    let abandoned_claim = claim(&store, abandoned, &terms()).await;
    fill(&server);

    let refused = store.reserve(&fresh_key(), &fingerprint(1), &terms()).await;
    assert_kind(refused, StoreErrorKind::Full);
    assert_replays(&reserve(&store, done).await, "before");
    assert!(matches!(
        reserve(&store, running).await,
        Reservation::InFlight { .. }
    ));
    store.renew(&renewed_claim, LEASE).await.unwrap();
    let note = Note::new("step", "1");
    let before = left(&server, renewed);
    store.note(&renewed_claim, &note).await.unwrap();
    assert!(left(&server, renewed) <= before);
    assert_eq!(store.notes(&renewed_claim).await.unwrap(), [note]);
    store
        .complete(&running_claim, &response("full"), RETENTION)
        .await
        .unwrap();
    assert_replays(&reserve(&store, running).await, "full");
    store.release(&released_claim).await.unwrap();
    store.abandon(&abandoned_claim, RETENTION).await.unwrap();
    assert!(matches!(
        reserve(&store, abandoned).await,
        Reservation::Unknown
    ));
    assert!(store.forget(done).await.unwrap());
}

#[tokio::test]
async fn a_lost_record_can_not_be_brought_back_while_there_is_no_room() {
    let Some(server) = Redis::start() else { return };
    let store = store_at(server.url());
    let key = fresh_key();
    let claimed = claim(&store, &key, &terms()).await;
    assert!(store.forget(&key).await.unwrap());
    fill(&server);

    let complete = async || store.complete(&claimed, &response("done"), RETENTION).await;
    assert_kind(complete().await, StoreErrorKind::Full);
    make_room(&server);
    complete().await.unwrap();
    assert_replays(&reserve(&store, &key).await, "done");
}

#[tokio::test]
async fn through_the_layer_a_full_server_is_503_and_a_run_keeps_its_answer() {
    let Some(server) = Redis::start() else { return };
    let (drain, probe) = (Drain::new(), Probe::new().shut());
    let service = IdempotencyLayer::new(store_at(server.url()), ScopeBy::single_tenant())
        .with_drain(drain.clone())
        .layer(probe.service::<Body>());
    let (kept, lost) = (
        spawn_send(&service, post("kept", "1")),
        spawn_send(&service, post("lost", "1")),
    );
    probe.started(2).await;
    let lost_run = (1..=2)
        .find(|run| probe.context(*run).key().as_str() == "lost")
        .unwrap();
    let lost_key = *probe.context(lost_run).record_key();
    assert_eq!(server.run::<u32>(&["DEL", &name_of(&lost_key)]).unwrap(), 1);
    fill(&server);

    let refused = send(&service, post("new", "1")).await;
    assert_eq!(refused.rejection(), Some(RejectionKind::StoreFull));
    assert_eq!(refused.head.headers["retry-after"], "1");
    probe.open();
    assert_eq!(kept.await.unwrap().status(), 201);
    assert_eq!(
        lost.await.unwrap().status(),
        201,
        "the handler's answer is the caller's"
    );
    assert!(send(&service, post("kept", "1")).await.is_replay());

    make_room(&server);
    until(|| async { drain.running() == 0 }).await;
    assert!(
        send(&service, post("lost", "1")).await.is_replay(),
        "it was told again"
    );
    assert_eq!(probe.runs(), 2);
}
