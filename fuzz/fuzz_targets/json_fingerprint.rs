//! The `json` mode takes for JSON what serde_json does, and a body that serde_json wrote for the one that it had read.
#![no_main]

#[path = "../../tests/support/strict_json.rs"]
mod strict_json;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use strict_json::Strict;
use tower_idempotency::{Fingerprint, FingerprintBy};

fuzz_target!(|body: &[u8]| {
    // Only a canonical form has no blanks.
    let is_canonical = of(body) == of(&[body, b" "].concat());
    let read = Strict::read(body);
    // serde_json refuses a number that no float holds.
    let may_overflow = body.iter().any(|byte| matches!(byte, b'e' | b'E')) || body.len() > 300;
    assert!(
        is_canonical || read.is_none(),
        "JSON was compared by its bytes"
    );
    assert!(
        !is_canonical || read.is_some() || may_overflow,
        "what is not JSON was taken for it"
    );

    if let Some(value) = read.and_then(|_| serde_json::from_slice::<Value>(body).ok()) {
        let written = serde_json::to_vec(&value).expect("a value");
        if has_no_float(&value) {
            assert_eq!(of(&written), of(body));
        }
        let pretty = serde_json::to_vec_pretty(&value).expect("a value");
        assert_eq!(of(&pretty), of(&written));
    }
});

fn of(body: &[u8]) -> Fingerprint {
    let (parts, ()) = http::Request::new(()).into_parts();
    Fingerprint::of(&FingerprintBy::json().identity(&parts, Some(body)))
}

/// Integers have one text; of a float, serde_json writes another one than it read.
fn has_no_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(items) => items.iter().all(has_no_float),
        Value::Object(members) => members.values().all(has_no_float),
        _ => true,
    }
}
