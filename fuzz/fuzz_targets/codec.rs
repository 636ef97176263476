//! Whatever bytes are in a record: what is read from them is written and read again as the same response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_idempotency::{SavedResponse, StoreErrorKind};

fuzz_target!(|record: &[u8]| {
    let saved = match SavedResponse::decode(record.to_vec()) {
        Ok(saved) => saved,
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Other);
            assert!(record[0] > 1, "refused for something else than its version");
            return;
        }
    };
    let bytes = saved.encode();
    let again = SavedResponse::decode(bytes.clone()).expect("our own version");
    assert_eq!(again, saved);
    assert_eq!(again.encode(), bytes);
    // Nothing is made up: all that is read was in the record.
    assert!(saved.is_tombstone() || bytes.len() == record.len());
});
