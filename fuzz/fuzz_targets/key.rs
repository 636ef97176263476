//! A key that was read can be sent again, quoted, and is read as the same key; a quoted value is read as `sfv` reads it.
#![no_main]

use http::HeaderValue;
use libfuzzer_sys::fuzz_target;
use tower_idempotency::{IdempotencyKey, KeyFormat};

fuzz_target!(|value: &[u8]| {
    let Ok(header) = HeaderValue::from_bytes(value) else {
        return;
    };
    let format = KeyFormat::default();
    let key = format.parse(&header).ok();

    if let Some(key) = &key {
        let text = key.as_str();
        assert!(
            (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        );
        let quoted = format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#));
        let quoted = HeaderValue::from_str(&quoted).expect("visible ASCII");
        assert_eq!(format.parse(&quoted).as_ref(), Ok(key));
        assert_eq!(IdempotencyKey::new(text).as_ref(), Ok(key));
    }

    if value.iter().find(|byte| **byte != b' ') == Some(&b'"') {
        assert_eq!(
            key.as_ref().map(IdempotencyKey::as_str),
            by_sfv(value).as_deref()
        );
    }
});

fn by_sfv(value: &[u8]) -> Option<String> {
    let item: sfv::Item = sfv::Parser::new(value).parse().ok()?;
    let text = item.bare_item.as_string()?.as_str();
    let is_key =
        (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_key.then(|| text.to_owned())
}
