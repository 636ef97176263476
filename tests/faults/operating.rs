//! The calls of operators and health checks in an outage: they fail, nothing else, and may be repeated.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, Tag,
    store::{Nonce, Reservation, Store, StoreKind, Terms},
};

use super::{
    KINDS, ONE_CONNECTION, looks_first,
    pool::{all_idle, assert_in_order, connect},
    shared_server,
    world::World,
};
use crate::{
    network::{Outage, end, side_by_side, until},
    servers::Proxy,
    table::{assert_kept, recorded},
};

/// Which call meets what | its error, or what it gives | what it gives when it is repeated. A look is the first of two statements, the one that only
/// reads.
///
/// A statement that hangs has 30 seconds, and is left out here.
const PROMISES: &str = "
call        outage     | error       | again
inspect     refused    | Unavailable | 201
inspect     cut before | Unavailable | 201
inspect     cut after  | Unavailable | 201
forget look refused    | Unavailable | true
forget look cut before | Unavailable | true
forget look cut after  | Unavailable | true
forget      refused    | Unavailable | true
forget      cut before | Unavailable | true
forget      cut after  | Unavailable | false
purge look  refused    | Unavailable | 1
purge look  cut before | Unavailable | 1
purge look  cut after  | Unavailable | 1
purge       refused    | Unavailable | 1
purge       cut before | Unavailable | 1
purge       cut after  | Unavailable | 0
ping        refused    | Unavailable | ()
ping        cut before | Unavailable | ()
ping        cut after  | Unavailable | ()
";

/// The same where the connection is replaced and what was cut off is sent again, unless it would have another answer then.
const PROMISES_OF_ONE_CONNECTION: &str = "
call        outage     | error       | again
inspect     refused    | Unavailable | 201
inspect     cut before | 201         | 201
inspect     cut after  | 201         | 201
forget look refused    | Unavailable | true
forget look cut before | true        | false
forget look cut after  | true        | false
forget      refused    | Unavailable | true
forget      cut before | Unavailable | true
forget      cut after  | Unavailable | false
ping        refused    | Unavailable | ()
ping        cut before | ()          | ()
ping        cut after  | ()          | ()
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Inspect,
    Forget,
    Purge,
    Ping,
}

/// A statement of a call.
#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    operation: Operation,
    is_look: bool,
}

const fn point(name: &'static str, operation: Operation, is_look: bool) -> Point {
    Point {
        name,
        operation,
        is_look,
    }
}

const POINTS: [Point; 6] = [
    point("inspect", Operation::Inspect, false),
    point("forget look", Operation::Forget, true),
    point("forget", Operation::Forget, false),
    point("purge look", Operation::Purge, true),
    point("purge", Operation::Purge, false),
    point("ping", Operation::Ping, false),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_call_in_an_outage_fails_and_may_be_repeated() {
    let Some(server) = shared_server() else {
        return;
    };
    let promises = match ONE_CONNECTION {
        true => PROMISES_OF_ONE_CONNECTION,
        false => PROMISES,
    };
    side_by_side(KINDS.iter().map(|kind| async move {
        let kind = *kind;
        let is_sent = |point: &Point| {
            let purges = point.operation == Operation::Purge;
            // What expires is the server's affair where there is one connection.
            !(purges && ONE_CONNECTION) && (!point.is_look || looks_first(kind, point.operation))
        };
        let points = POINTS.into_iter().filter(is_sent);
        let mut lines = Vec::new();
        for point in points.clone() {
            // A purge counts what there is in all.
            let world = World::on(server).await;
            for outage in [Outage::Refused, Outage::CutBefore, Outage::CutAfter] {
                let line = line(&world, kind, point, outage).await;
                lines.push(std::future::ready(line));
            }
        }
        let names: Vec<_> = points.map(|point| format!("{:<11} ", point.name)).collect();
        let applies = |line: &str| names.iter().any(|name| line.starts_with(name));
        assert_kept(promises, applies, lines).await;
    }))
    .await;
}

async fn line(world: &World, kind: StoreKind, point: Point, outage: Outage) -> String {
    let (proxy, key) = (Proxy::start(&world.url), new_key());
    // A second connection would be found to be cut only when it is used.
    let pool = connect(proxy.url(), 1, Duration::from_secs(10));
    let store = World::store(kind, pool.clone());
    prepare(world, kind, point.operation, &key).await;
    store.ping().await.expect("a connection");
    all_idle(&pool).await;

    let passes = usize::from(!point.is_look && looks_first(kind, point.operation));
    let strikes = proxy.inject(outage.on("").after(passes));
    let asked = tokio::spawn({
        let store = Arc::clone(&store);
        async move { perform(&*store, point.operation, &key).await }
    });
    strikes.struck(1).await;
    outage.struck(&proxy);
    let error = match end(asked).await.expect("no panic") {
        Ok(answer) => answer,
        Err(error) => format!("{:?}", error.kind()),
    };
    outage.end(&proxy, &strikes).await;
    let again = perform(&*store, point.operation, &key).await;
    let again = again.expect("the way is free");
    assert_in_order(world, &pool).await;
    let (name, fault) = (point.name, outage.name());
    format!("{name:<11} {fault:<10} | {error:<11} | {again}")
}

/// Makes a completed record under this key; for a purge, an expired one.
async fn prepare(world: &World, kind: StoreKind, operation: Operation, key: &RecordKey) {
    let store = world.direct_store(kind);
    let (long, is_purge) = (Duration::from_secs(600), operation == Operation::Purge);
    let retention = if is_purge { Duration::ZERO } else { long };
    let fingerprint = Fingerprint::new(Tag::from_u16(0x0101), [1; 32]);
    let terms = Terms::new(Nonce::random(), long, long);
    let reserved = store.reserve(key, &fingerprint, &terms).await;
    let Ok(Reservation::Acquired(claim)) = reserved else {
        panic!("not acquired: {reserved:?}");
    };
    let status = StatusCode::CREATED;
    let response = SavedResponse::new(status, HeaderMap::new(), "done".into(), None);
    let completed = store.complete(&claim, &response, retention).await;
    completed.expect("a record");
    until(|| async {
        let record = store.inspect(key).await.expect("a direct connection");
        (record.is_none() == is_purge).then_some(())
    })
    .await;
}

async fn perform(
    store: &dyn Store,
    operation: Operation,
    key: &RecordKey,
) -> Result<String, StoreError> {
    Ok(match operation {
        Operation::Inspect => recorded(store.inspect(key).await?),
        Operation::Forget => store.forget(key).await?.to_string(),
        Operation::Purge => store.purge_expired(10).await?.to_string(),
        Operation::Ping => format!("{:?}", store.ping().await?),
    })
}

fn new_key() -> RecordKey {
    let mut bytes = [7; 32];
    bytes[..16].copy_from_slice(Nonce::random().as_bytes());
    RecordKey::from_bytes(bytes)
}
