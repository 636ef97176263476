//! The name of a record: what it is made of, and that it never changes.

use tower_idempotency::{IdempotencyKey, RecordKey, Scope};

fn derive(namespace: &str, scope: &[u8], key: &str) -> RecordKey {
    let scope = Scope::new(scope).unwrap_or_else(Scope::single_tenant);
    RecordKey::derive(namespace, &scope, &IdempotencyKey::new(key).expect("a key"))
}

#[track_caller]
fn distinct(keys: &[RecordKey]) {
    for (i, one) in keys.iter().enumerate() {
        let twin = keys.iter().skip(i + 1).position(|other| one == other);
        assert_eq!(
            twin, None,
            "what number {i} is the same as, counted from there"
        );
    }
}

/// A record is found by every later release: these digests never change.
#[test]
fn record_keys_stay_the_same_from_release_to_release() {
    let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    for (namespace, scope, key, digest) in [
        (
            "",
            "",
            "k",
            "884c0c4fd4f0ee4a1f1caa09ec15eb47ac72901a5437759ba51c186caef4e7cc",
        ),
        (
            "",
            "alice",
            uuid,
            "118a66bd1cb6fe01d1abe8ddcaa7b9a16b2bb6a0a51ddea9fca340fd589d62f3",
        ),
        (
            "payments",
            "alice",
            uuid,
            "ab417b2571e6e95843406cb5d8f635390a1ba895046dd6759f42af0eec2a2812",
        ),
        (
            "",
            "\0",
            "k",
            "6e5ae227e4309d6d29a3e5a69f885594f334a60c1f9878afbc2091e814e7846c",
        ),
    ] {
        let made = derive(namespace, scope.as_bytes(), key);
        assert_eq!(made.to_hex(), digest);
        assert_eq!(RecordKey::from_bytes(*made.as_bytes()), made);
    }
}

/// MySQL's `HEX` gives upper case.
#[test]
fn a_record_key_is_read_from_its_hexadecimal_digits_in_either_case() {
    let made = derive("payments", b"alice", "k");
    let digits = made.to_hex();
    assert_eq!(RecordKey::from_hex(&digits), Some(made));
    assert_eq!(RecordKey::from_hex(&digits.to_uppercase()), Some(made));
    let (short, long) = (&digits[1..], format!("{digits}0"));
    let (foreign, wide) = (format!("g{short}"), format!("ü{}", &digits[2..]));
    for not in [
        "",
        short,
        &long,
        &foreign,
        &wide,
        &format!("0x{}", &digits[2..]),
    ] {
        assert_eq!(RecordKey::from_hex(not), None, "{not}");
    }
    let debug = format!("{made:?}");
    assert_eq!(debug, format!("RecordKey({}..)", &digits[..12]));
}

#[test]
fn namespace_scope_and_key_do_not_run_into_each_other() {
    distinct(&[
        derive("a", b"bc", "d"),
        derive("ab", b"c", "d"),
        derive("abc", b"", "d"),
        derive("", b"abc", "d"),
        derive("a", b"b", "cd"),
        derive("", b"ab", "cd"),
        derive("", b"a", "bcd"),
        derive("", b"", "abcd"),
    ]);
}

/// Nothing is folded, trimmed or normalised.
#[test]
fn scopes_and_keys_are_compared_byte_by_byte() {
    let scopes = [
        "",
        "t",
        "t ",
        " t",
        "T",
        "t\0",
        "\0t",
        "\0",
        "t\u{202e}",
        "\u{e9}",
        "e\u{301}",
        "ss",
        "ß",
        "\u{1f600}",
        "\u{1f601}",
    ];
    distinct(&scopes.map(|scope| derive("", scope.as_bytes(), "k")));
    distinct(&["abc", "ABC", "abd", "abc=", "YWJj", "ywJj"].map(|key| derive("", b"t", key)));
    distinct(&[
        derive("", &[0xff], "k"),
        derive("", &[0xfe], "k"),
        derive("", "\u{fffd}".as_bytes(), "k"),
    ]);
}

#[test]
fn one_key_in_two_scopes_is_two_records() {
    distinct(&[
        derive("", b"alice", "k"),
        derive("", b"bob", "k"),
        derive("", b"", "k"),
    ]);
}

#[test]
fn the_single_tenant_is_no_scope_that_a_request_can_name() {
    assert_eq!(Scope::new(""), None);
    assert!(Scope::single_tenant().as_bytes().is_empty());
}

/// A log can't be forged by a scope, and shows too little of a record key to look it up by force.
#[test]
fn the_debug_forms_are_escaped_and_short() {
    let scope = Scope::new("a\n\u{202e}\"").expect("a scope");
    assert_eq!(format!("{scope:?}"), r#"Scope("a\n\xe2\x80\xae\"")"#);
    assert_eq!(
        format!("{:?}", RecordKey::from_bytes([0xab; 32])),
        "RecordKey(abababababab..)"
    );
}
