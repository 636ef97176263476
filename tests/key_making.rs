//! Keys that a client makes, and how they are written.

use std::collections::HashSet;

use proptest::prelude::*;
use tower_idempotency::{IdempotencyKey, KeyFormat};
use uuid::Uuid;

/// Computed by another implementation: Python's `hashlib.sha1` and `uuid.UUID(bytes=…, version=5)`. They never change.
const DERIVED: [(&str, &str, &str); 6] = [
    ("charge", "order 17", "bbade816-365e-5042-b06d-a058f91cfa5c"),
    ("refund", "order 17", "6380a41d-2579-5970-91be-593bf543d01d"),
    ("", "", "2a829cc5-2faa-5c04-a44b-64a01bab9de1"),
    ("a", "bc", "724215f2-6aef-5d30-99ae-ceaf22ed40ab"),
    ("ab", "c", "d36b62f9-c9ce-580c-acce-77d0ba39d815"),
    ("Größe", "注文", "3dcb21ce-0d3a-5118-9017-2430b9a3dac7"),
];

#[test]
fn a_derived_key_is_always_the_same() {
    for (namespace, name, key) in DERIVED {
        assert_eq!(IdempotencyKey::derive(namespace, name).as_str(), key);
    }
}

#[test]
fn random_keys_are_uuids_of_version_4_and_differ() {
    let keys: HashSet<_> = (0..1_000).map(|_| IdempotencyKey::random()).collect();
    assert_eq!(keys.len(), 1_000);
    for key in keys {
        let uuid = Uuid::parse_str(key.as_str()).expect("a UUID");
        assert_eq!(uuid.get_version_num(), 4);
        assert_eq!(IdempotencyKey::from(uuid), key);
        let parsed = KeyFormat::uuid().parse(&key.to_header_value());
        assert_eq!(parsed, Ok(key));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same_key(text in "[!-~]{1,255}") {
        // One that begins with a quote would be read as a quoted one, and so it is written as one.
        let key = IdempotencyKey::new(&text).expect("a key");
        let format = KeyFormat::default();
        for value in [key.to_header_value(), key.to_quoted_header_value()] {
            prop_assert!(value.is_sensitive());
            prop_assert_eq!(format.parse(&value), Ok(key.clone()));
        }
    }

    #[test]
    fn different_names_have_different_keys(
        one in ("[ab]{0,3}", "[ab]{0,3}"),
        other in ("[ab]{0,3}", "[ab]{0,3}"),
    ) {
        let key = |(namespace, name): &(String, String)| IdempotencyKey::derive(namespace, name);
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }
}
