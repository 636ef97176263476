//! Which bodies are the same in the `json` mode.

#[path = "support/json_text.rs"]
mod json_text;
#[path = "support/strict_json.rs"]
mod strict_json;

use std::collections::BTreeMap;

use json_text::written;
use proptest::{collection, prelude::*, sample::Index};
use serde_json::Value;
use strict_json::Strict;
use tower_idempotency::{Fingerprint, FingerprintBy};

fn of(body: impl AsRef<[u8]>) -> Fingerprint {
    let (parts, ()) = http::Request::post("/")
        .body(())
        .expect("a request")
        .into_parts();
    Fingerprint::of(&FingerprintBy::json().identity(&parts, Some(body.as_ref())))
}

/// Whether the body has a canonical form: a blank more makes no difference then, and does if bytes are compared.
fn is_canonical(body: &[u8]) -> bool {
    of(body) == of([body, b" "].concat())
}

#[track_caller]
fn same(bodies: &[&str]) {
    let mut made = bodies.iter().map(of);
    let first = made.next();
    for (body, other) in bodies.iter().skip(1).zip(made) {
        assert_eq!(Some(other), first, "{body}");
    }
}

#[track_caller]
fn distinct(bodies: &[&str]) {
    for (i, one) in bodies.iter().enumerate() {
        for other in bodies.iter().skip(i + 1) {
            assert_ne!(of(one), of(other), "{one} and {other}");
        }
    }
}

#[test]
fn order_of_members_blanks_and_escapes_make_no_difference() {
    same(&[
        r#"{"a":1,"b":2}"#,
        r#"{"b":2,"a":1}"#,
        "\r\n { \"a\" : 1 ,\t\"b\"\n: 2 } ",
        r#"{"\u0061":1,"b":2}"#,
        r#"{"b":2,"\u0061":1}"#,
    ]);
    same(&[r#""\u20ac\n\/é\ud83d\ude00""#, "\"€\\u000a/\\u00E9😀\""]);
    same(&[r#""\"\\\u0022""#, r#""\u0022\u005c\"""#]);
    same(&[
        r#"{"a":{"d":1,"c":[{"f":1,"e":2}]},"b":[]}"#,
        r#"{"b":[ ],"a":{"c":[{"e":2,"f":1}],"d":1}}"#,
    ]);
}

#[test]
fn arrays_keep_their_order() {
    distinct(&[
        "[]", "[1,2]", "[2,1]", "[12]", "[[1],2]", "[1,[2]]", "[[1,2]]", "[1]", "[[]]", "[[],[]]",
    ]);
}

/// 64-bit floats hold none of these pairs apart.
#[test]
fn numbers_are_told_apart_by_their_text() {
    distinct(&[
        "9007199254740992",
        "9007199254740993",
        "18446744073709551616",
        "18446744073709551617",
    ]);
    distinct(&[
        "1", "1.0", "1e0", "1E0", "1e+0", "10e-1", "0", "-0", "0.0", "-1", "1e999", "1e998",
        "\"1\"", "1.10", "1.1",
    ]);
    same(&["9007199254740993", " 9007199254740993 "]);
}

#[test]
fn values_of_different_types_are_different() {
    distinct(&[
        "null",
        "true",
        "false",
        "0",
        "\"\"",
        "\"null\"",
        "\"true\"",
        "[]",
        "{}",
        "[null]",
        "{\"\":null}",
        "\"[]\"",
        "\"{}\"",
        "\"0\"",
    ]);
}

#[test]
fn what_a_string_contains_does_not_look_like_structure() {
    distinct(&[
        r#"["a","b"]"#,
        r#"["a\",\"b"]"#,
        r#"["a,b"]"#,
        r#"{"a":"b"}"#,
        r#"{"a\":\"b":""}"#,
        r#"{"a":"b","c":"d"}"#,
        r#"{"a":"b\",\"c\":\"d"}"#,
        r#""\\n""#,
        r#""\n""#,
        r#""\\u0061""#,
        r#""a""#,
        r#""\u0000""#,
        r#""\\u0000""#,
    ]);
}

/// Which of the two members the handler takes, nobody knows here.
#[test]
fn an_object_that_names_a_member_twice_is_compared_by_its_bytes() {
    for body in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"a":3}"#,
        r#"{"a":1,"\u0061":1}"#,
        r#"[{"":1,"":2}]"#,
        r#"{"b":{"a":1,"a":2}}"#,
    ] {
        assert!(!is_canonical(body.as_bytes()), "{body}");
    }
    distinct(&[
        r#"{"a":1,"a":2}"#,
        r#"{"a":2,"a":1}"#,
        r#"{"a":2}"#,
        r#"{"a":1}"#,
    ]);
    assert!(is_canonical(br#"{"a":{"a":1},"b":{"a":1}}"#));
}

#[test]
fn what_is_not_json_is_compared_by_its_bytes() {
    for body in [
        "",
        " ",
        "{",
        "[",
        "[1",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{a:1}",
        "{'a':1}",
        "01",
        "1.",
        ".1",
        "+1",
        "-",
        "1e",
        "1e+",
        "--1",
        "0x1",
        "NaN",
        "nul",
        "nulll",
        "True",
        "1 2",
        "[1 2]",
        "\"",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u+123\"",
        "\"\n\"",
        "\"\t\"",
        "\u{feff}1",
        "\u{a0}1",
        "1\0",
        "/**/1",
        "]",
        "}",
        "[}",
        "{]",
        "\"\\ud83d\"",
        "\"\\ude00\"",
        "\"\\ude00\\ud83d\"",
        "\"\\ud83d\\u0061\"",
        "\"\\ud83dx\"",
        "\"\\ud83d\\ud83d\"",
    ] {
        assert!(!is_canonical(body.as_bytes()), "{body}");
        assert_eq!(of(body), of(body));
    }
    for body in [
        &b"\"\xff\""[..],
        b"\"\xed\xa0\x80\"",
        b"\"\xc0\xaf\"",
        b"\xff",
        b"{\"\xe9\":1}",
    ] {
        assert!(!is_canonical(body), "{body:?}");
    }
}

/// A body that is compared by its bytes can't be the canonical form of another one.
#[test]
fn a_fallback_is_never_the_same_as_a_canonical_form() {
    distinct(&[r#"{"a":1}"#, r#"{"a":1,}"#, r#"{"a":1,"a":1}"#]);
    distinct(&["json{\"a\":1}", r#"{"a":1}"#, "exact{\"a\":1}"]);
}

#[test]
fn nesting_is_followed_as_deep_as_serde_json_follows_it() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"b\":0,\"a\":", "}]")] {
        let levels = if open.len() > 6 { 2 } else { 1 };
        for depth in [1, 62, 63, 64, 126, 127, 128, 129] {
            let body = format!("{}0{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(
                is_canonical(body.as_bytes()),
                depth * levels <= 127,
                "{depth} of {open}"
            );
            assert_eq!(
                Strict::read(body.as_bytes()).is_some(),
                depth * levels <= 127,
                "{depth} of {open}"
            );
        }
    }
}

#[test]
fn hostile_nesting_does_not_exhaust_the_stack() {
    for open in ["[", "{\"a\":", "[{\"a\":[", "\"\\", "{", "-"] {
        let body = open.repeat((1 << 20) / open.len());
        assert!(!is_canonical(body.as_bytes()));
    }
}

/// Values whose numbers have one text each.
fn json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ab]{0,2}",
        any::<String>(),
        "[\u{0}-\u{1f}\"\\\\/\u{7f}é€😀]{0,4}"
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..3).prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn leaves<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    let is_leaf = match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    if is_leaf {
        found.push(value);
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(|item| leaves(item, found));
    } else if let Value::Object(members) = value {
        members.values_mut().for_each(|value| leaves(value, found));
    }
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    collection::vec(any::<u8>(), 0..64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn no_way_to_write_a_value_changes_its_fingerprint(value in json(), one in choices(), other in choices()) {
        let (one, other) = (written(&value, &one), written(&value, &other));
        prop_assert_eq!(serde_json::from_str::<Value>(&one).unwrap(), value);
        prop_assert_eq!(of(&one), of(&other), "{} and {}", one, other);
    }

    #[test]
    fn another_leaf_is_another_fingerprint(value in json(), which in any::<Index>(), leaf in json(), how in choices()) {
        let mut changed = value.clone();
        let mut found = Vec::new();
        leaves(&mut changed, &mut found);
        let position = which.index(found.len());
        *found[position] = leaf;
        let (one, other) = (written(&value, &how), written(&changed, &how));
        prop_assert_eq!(of(&one) == of(&other), value == changed, "{} and {}", one, other);
    }

    #[test]
    fn small_values_are_the_same_exactly_if_serde_json_says_so(one in small(), other in small(), how in choices()) {
        prop_assert_eq!(of(written(&one, &how)) == of(other.to_string()), one == other, "{} and {}", one, other);
    }

    #[test]
    fn a_text_is_taken_for_json_exactly_if_serde_json_does(
        value in json(), how in choices(), at in any::<Index>(), by in "[\"\\\\\\[\\]{}:,0-9.eE+ntu\\-dD \t]{0,2}", cut in 0..3_usize,
    ) {
        let mut text = written(&value, &how).into_bytes();
        let at = at.index(text.len());
        let end = text.len().min(at + cut);
        text.splice(at..end, by.into_bytes());
        // Its own limit: a number that no float can hold.
        prop_assume!(!text.iter().any(|byte| matches!(byte, b'e' | b'E')) || Strict::read(&text).is_some());
        prop_assert_eq!(is_canonical(&text), Strict::read(&text).is_some(), "{}", String::from_utf8_lossy(&text));
    }
}

/// So few values that two of them are often equal.
fn small() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::from("a")), Just(Value::from(1))];
    leaf.prop_recursive(2, 4, 2, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..2).prop_map(Value::from),
            collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|members: BTreeMap<_, _>| Value::Object(members.into_iter().collect())),
        ]
    })
}
