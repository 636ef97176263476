//! What the tool finds and does on each of the stores.

use std::{convert::Infallible, fmt::Write, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, KeyFormat, RecordKey, RequestBody, SavedResponse, Scope, ScopeBy,
};

use crate::shop::{HOUR, Shop};

type Body = Full<Bytes>;

pub fn digits(key: &RecordKey) -> String {
    let mut digits = String::new();
    for byte in key.as_bytes() {
        write!(digits, "{byte:02x}").expect("a string");
    }
    digits
}

/// The key that the client sends, in its two forms and as an operator may give it.
const BARE: [&str; 3] = ["--scope=alice", "--key=8e03978e-40d5", "--namespace=eu"];
const QUOTED: [&str; 3] = ["--scope=alice", "--key=\"8e03978e-40d5\"", "--namespace=eu"];

/// A charge of alice's under that key, and its record key.
async fn charge(shop: &Shop) -> RecordKey {
    let sent = HeaderValue::from_static("\"8e03978e-40d5\"");
    let handler = service_fn(async |_request: Request<RequestBody<Body>>| {
        let body = Body::from(r#"{"card":"4242"}"#);
        Ok::<_, Infallible>(Response::new(body))
    });
    let scope = ScopeBy::parts(|_| Scope::new("alice"));
    let layer = IdempotencyLayer::new(Arc::clone(&shop.store), scope);
    let service = layer.with_namespace("eu").layer(handler);
    let request = Request::post("/charges").header("idempotency-key", &sent);
    let request = request.body(Body::default()).expect("a request");
    let answer = service.oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    let scope = Scope::new("alice").expect("a scope");
    let key = KeyFormat::default().parse(&sent).expect("a key");
    RecordKey::derive("eu", &scope, &key)
}

pub async fn a_record_is_found_by_scope_and_header(shop: Shop) {
    let digits = digits(&charge(&shop).await);
    for target in [&BARE[..], &QUOTED, &[&digits]] {
        let found = shop.ops(&[&["inspect"], target].concat()).await;
        found.assert_code(0);
        assert_eq!(found.field("record key"), digits);
        assert_eq!(found.field("state"), "completed");
        assert_eq!(found.field("response"), "200 OK, a body of 15 bytes");
        assert!(!found.out.contains("4242"));
    }
    let body = shop.ops(&["inspect", &digits, "--body"]).await;
    assert_eq!(body.field("body"), r#"{"card":"4242"}"#);

    let document = shop.ops(&["inspect", &digits, "--json"]).await.json();
    let expires = document["expires_in_ms"].as_u64().expect("a number");
    assert!((1..=24 * 3_600_000).contains(&expires), "{expires}");
    let fence = document["fence"].as_u64().expect("a number");
    assert_eq!(
        document,
        json!({
            "record_key": digits, "state": "completed", "attempt": 1, "fence": fence, "expires_in_ms": expires,
            "lease_left_ms": null, "response": { "kept": true, "status": 200, "body_bytes": 15 },
        })
    );
    let with_body = shop.ops(&["inspect", &digits, "--json", "--body"]).await;
    assert_eq!(with_body.json()["response"]["body"], r#"{"card":"4242"}"#);

    // Another namespace, scope or key is another record.
    for other in [
        ["--scope=alice", "--key=8e03978e-40d5", "--namespace=us"],
        ["--scope=bob", "--key=8e03978e-40d5", "--namespace=eu"],
        ["--scope=alice", "--key=8e03978e-40d6", "--namespace=eu"],
    ] {
        for command in ["inspect", "forget"] {
            let absent = shop.ops(&[&[command], &other[..]].concat()).await;
            absent.assert_code(1);
        }
    }
}

pub async fn a_key_is_freed_by_those_who_mean_it(shop: Shop) {
    let key = charge(&shop).await;
    // There is nobody who could confirm.
    let refused = shop.ops(&[&["forget"], &BARE[..]].concat()).await;
    refused.assert_code(1);
    assert!(refused.err.contains("--yes"), "{}", refused.err);
    assert!(shop.has(&key).await);

    let forget = [&["forget", "--yes", "--json"], &QUOTED[..]].concat();
    let forgotten = shop.ops(&forget).await;
    let digits = digits(&key);
    let expected = json!({ "record_key": digits, "forgotten": true });
    assert_eq!(forgotten.assert_code(0).json(), expected);
    assert!(!shop.has(&key).await);
    let absent = json!({ "record_key": digits, "state": "absent" });
    for arguments in [&["inspect", &digits, "--json"][..], &forget] {
        let gone = shop.ops(arguments).await;
        assert_eq!(gone.assert_code(1).json(), absent);
    }
}

pub async fn unsettled_records_are_listed_and_all_are_counted(shop: Shop) {
    let [unknown, running, done] = [1, 2, 3].map(|byte| RecordKey::from_bytes([byte; 32]));
    if shop.is_transaction() {
        // As a handler leaves it that ended its transaction by itself.
        shop.complete(unknown, &SavedResponse::tombstone()).await;
        shop.execute("UPDATE tower_idempotency_transactions SET response = NULL")
            .await;
    } else {
        let claim = shop.claim(unknown).await;
        shop.store.abandon(&claim, HOUR).await.expect("a database");
        shop.claim(running).await;
    }
    shop.complete(done, &SavedResponse::tombstone()).await;

    let list = shop.ops(&["list", "--json"]).await;
    let mut found: Vec<_> = list
        .assert_code(0)
        .json_lines()
        .iter()
        .map(|record| (record["record_key"].clone(), record["state"].clone()))
        .collect();
    // The oldest first, which on a coarse clock may be both.
    found.sort_by_key(|(key, _)| key.to_string());
    let mut expected = vec![(json!(digits(&unknown)), json!("unknown"))];
    if !shop.is_transaction() {
        expected.push((json!(digits(&running)), json!("in_flight")));
    }
    assert_eq!(found, expected);
    for record in list.json_lines() {
        assert!(record["age_ms"].as_u64() < Some(3_600_000), "{record}");
        let has_lease = record["state"] == "in_flight";
        assert_eq!(record["lease_left_ms"].is_u64(), has_lease, "{record}");
    }
    let one = shop.ops(&["list", "--json", "--limit", "1"]).await;
    assert_eq!(one.assert_code(0).json_lines().len(), 1);
    assert!(one.err.contains("--limit"), "{}", one.err);
    let old = shop.ops(&["list", "--older-than", "1h", "--json"]).await;
    assert_eq!(
        (old.assert_code(0).out.as_str(), old.err.as_str()),
        ("", "")
    );

    // A head and a line for each, all of them in columns.
    let list = shop.ops(&["list"]).await;
    assert_eq!(list.out.lines().count(), 1 + expected.len());
    let widths: Vec<_> = list.out.lines().map(str::len).collect();
    assert!(
        widths.iter().all(|width| *width == widths[0]),
        "{}",
        list.out
    );
    assert!(list.out.contains(&digits(&unknown)));

    let stats = shop.ops(&["stats", "--json"]).await.json();
    let (kind, in_flight) = match shop.is_transaction() {
        true => ("transaction", 0),
        false => ("lease", 1),
    };
    let bytes = stats["response_bytes"].as_u64().expect("a number");
    assert_eq!(
        stats,
        json!({
            "kind": kind, "in_flight": in_flight, "unknown": 1, "completed": 1, "expired": 0, "response_bytes": bytes
        })
    );
    let stats = shop.ops(&["stats"]).await;
    assert_eq!(stats.assert_code(0).field("unknown"), "1");
    let inspected = shop.ops(&["inspect", &digits(&unknown)]).await;
    assert_eq!(inspected.assert_code(0).field("state"), "unknown");
}

pub async fn expired_records_are_purged_in_batches(shop: Shop) {
    for byte in 0..5 {
        shop.complete(
            RecordKey::from_bytes([byte; 32]),
            &SavedResponse::tombstone(),
        )
        .await;
    }
    let set = match shop.is_transaction() {
        true => "expires = 1",
        false => "expires = 1, lease_end = 1",
    };
    shop.execute(&format!("UPDATE {} SET {set}", shop.table()))
        .await;
    let live = RecordKey::from_bytes([9; 32]);
    shop.complete(live, &SavedResponse::tombstone()).await;

    let counts = shop.store.count_records().await.expect("a database");
    assert_eq!((counts.expired, counts.completed), (5, 1));
    let purged = shop.ops(&["purge", "--batch", "2", "--json"]).await;
    assert_eq!(purged.assert_code(0).json(), json!({ "purged": 5 }));
    let counts = shop.store.count_records().await.expect("a database");
    assert_eq!((counts.expired, counts.completed), (0, 1));
    assert!(shop.has(&live).await);
    assert_eq!(shop.ops(&["purge"]).await.out, "0 purged\n");
}

pub async fn a_table_that_is_missing_or_of_a_later_release_is_told(shop: Shop) {
    let ping = shop.ops(&["ping", "--json"]).await;
    assert_eq!(ping.assert_code(0).json(), json!({ "ok": true }));

    let table = shop.table();
    let kind = table.trim_start_matches("tower_idempotency_");
    shop.execute(&match shop.url.split_once(':').expect("a scheme").0 {
        "sqlite" => {
            format!("UPDATE tower_idempotency_schema SET version = 2 WHERE name = '{kind}'")
        }
        "postgres" => {
            format!("COMMENT ON TABLE {table} IS 'tower-idempotency {kind}, schema version 2'")
        }
        _ => format!("ALTER TABLE {table} COMMENT = 'tower-idempotency {kind}, schema version 2'"),
    })
    .await;
    for command in [&["ping"][..], &["stats"], &["list"], &["purge"]] {
        let refused = shop.ops(command).await;
        refused.assert_code(3);
        assert!(refused.err.contains("schema version 2"), "{}", refused.err);
        assert_eq!(refused.out, "");
    }

    if shop.url.starts_with("sqlite") {
        shop.execute("DROP TABLE tower_idempotency_schema").await;
    }
    shop.execute(&format!("DROP TABLE {table}")).await;
    let refused = shop.ops(&["ping"]).await;
    refused.assert_code(3);
    assert!(refused.err.contains("missing"), "{}", refused.err);
    let hint = refused.err.contains("--transaction");
    assert_eq!(hint, !shop.is_transaction(), "{}", refused.err);
}
