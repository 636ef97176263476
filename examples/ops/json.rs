//! Records as JSON. The names of the fields don't change.

use std::time::Duration;

use serde_json::{Value, json};
use tower_idempotency::{
    RecordKey, SavedResponse,
    store::{Counts, Listed, Record, RecordState, StoreKind},
};

use crate::{show::state, text::hex};

pub(crate) fn record(key: &RecordKey, record: &Record, with_body: bool) -> Value {
    let (lease_left, response) = match &record.state {
        RecordState::InFlight { lease_left, .. } => (Some(milliseconds(*lease_left)), Value::Null),
        RecordState::Completed(saved) => (None, response(saved, with_body)),
        RecordState::Unknown | _ => (None, Value::Null),
    };
    json!({
        "record_key": key.to_hex(),
        "state": state(record),
        "attempt": record.attempt,
        "fence": record.fence,
        "expires_in_ms": milliseconds(record.expires_in),
        "lease_left_ms": lease_left,
        "response": response,
    })
}

pub(crate) fn listed(listed: &Listed) -> Value {
    let mut document = record(&listed.key, &listed.record, false);
    if let Value::Object(fields) = &mut document {
        fields.remove("response");
        fields.insert("age_ms".to_owned(), milliseconds(listed.age).into());
    }
    document
}

/// A body that isn't text is hexadecimal digits instead.
fn response(saved: &SavedResponse, with_body: bool) -> Value {
    let (Some(status), Some(headers), Some(body)) = (saved.status(), saved.headers(), saved.body())
    else {
        return json!({ "kept": false });
    };
    let (status, length) = (status.as_u16(), body.len());
    if !with_body {
        return json!({ "kept": true, "status": status, "body_bytes": length });
    }
    let headers = headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        [name.as_str().to_owned(), value.into_owned()]
    });
    let (text, digits) = match str::from_utf8(body) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(hex(body))),
    };
    json!({
        "kept": true,
        "status": status,
        "headers": headers.collect::<Vec<_>>(),
        "body_bytes": length,
        "body": text,
        "body_hex": digits,
    })
}

pub(crate) fn counts(counts: &Counts, kind: StoreKind) -> Value {
    let is_transaction = kind == StoreKind::Transaction;
    json!({
        "kind": if is_transaction { "transaction" } else { "lease" },
        "in_flight": counts.in_flight,
        "unknown": counts.unknown,
        "completed": counts.completed,
        "expired": counts.expired,
        "response_bytes": counts.response_bytes,
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
