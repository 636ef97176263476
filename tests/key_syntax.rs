//! Which header values are keys, and which key they are.

use http::HeaderValue;
use proptest::prelude::*;
use tower_idempotency::{IdempotencyKey, InvalidKey, KeyFormat};

fn parse(value: impl AsRef<[u8]>) -> Result<String, InvalidKey> {
    parse_as(&KeyFormat::default(), value)
}

fn parse_as(format: &KeyFormat, value: impl AsRef<[u8]>) -> Result<String, InvalidKey> {
    let value = HeaderValue::from_bytes(value.as_ref()).expect("a value that http lets through");
    format.parse(&value).map(|key| key.as_str().to_owned())
}

#[track_caller]
fn refused(values: &[&str]) {
    for value in values {
        assert!(parse(value).is_err(), "{value:?} was taken for a key");
    }
}

#[test]
fn both_forms_of_one_key_are_the_same_key() {
    let forms = [
        "abc",
        " abc ",
        "\"abc\"",
        "  \"abc\"  ",
        "\"abc\";p=1",
        "\"abc\";  a;b=?0",
    ];
    for form in forms {
        assert_eq!(parse(form).as_deref(), Ok("abc"), "{form:?}");
    }
    assert_eq!(IdempotencyKey::new("abc").unwrap().as_str(), "abc");
}

/// What is special in structured fields, but not a quote, is part of a bare key.
#[test]
fn a_bare_key_is_taken_as_it_stands() {
    for key in [
        ":YWJj:", "abc;p=1", "a\\b", "?1", "@0", "(a)", "a=b", "%41", "~",
    ] {
        assert_eq!(parse(key).as_deref(), Ok(key));
    }
}

/// A text is no header: its quotes are part of the key.
#[test]
fn a_key_is_parsed_from_a_text_as_it_stands() {
    let key = |text: &str| text.parse::<IdempotencyKey>();
    assert_eq!(key("abc"), IdempotencyKey::new("abc"));
    assert_eq!(key(r#""abc""#).expect("a key").as_str(), r#""abc""#);
    assert_eq!(key("a b"), IdempotencyKey::new("a b"));
    assert!(key("a b").is_err());
}

#[test]
fn escapes_in_the_quoted_form_are_resolved() {
    assert_eq!(parse(r#""a\"b""#).as_deref(), Ok("a\"b"));
    assert_eq!(parse(r#""a\\b""#).as_deref(), Ok("a\\b"));
    assert_eq!(parse(r#""a,b""#).as_deref(), Ok("a,b"));
    assert_eq!(parse(r#"a\b"#), parse(r#""a\\b""#));
}

#[test]
fn a_malformed_value_is_refused_and_not_ignored() {
    refused(&[
        r#""abc"#,
        r#"abc""#,
        r#""abc\""#,
        r#""abc\"#,
        r#""a\bc""#,
        r#""abc"d"#,
        r#""abc" "abc""#,
        r#"""abc"""#,
        "abc,",
        ",",
        "abc,abc",
        "abc, abc",
        r#""abc", "abc""#,
        r#""abc","#,
        r#"a"b"#,
        "\"",
    ]);
}

#[test]
fn an_empty_or_blank_value_is_refused() {
    refused(&[
        "",
        " ",
        "   ",
        "\t",
        " \t ",
        r#""""#,
        r#"" ""#,
        r#""";p=1"#,
        "\"\t\"",
    ]);
}

#[test]
fn a_tab_around_a_key_is_refused() {
    refused(&["\tabc", "abc\t", "\t\"abc\"", "\"abc\"\t"]);
}

#[test]
fn a_space_inside_a_key_is_refused_in_both_forms() {
    refused(&["a b", r#""a b""#, r#"" a""#, r#""a ""#]);
}

#[test]
fn only_visible_ascii_is_a_key() {
    for byte in 0..=0xff {
        for value in [
            vec![byte],
            vec![b'a', byte, b'a'],
            vec![b'"', b'a', byte, b'"'],
        ] {
            // `http` itself refuses most control characters.
            let Ok(header) = HeaderValue::from_bytes(&value) else {
                assert!(byte < 0x20 || byte == 0x7f);
                continue;
            };
            let key = KeyFormat::default().parse(&header);
            let special = matches!(byte, b',' | b'"' | b'\\');
            if !special {
                assert_eq!(key.is_ok(), byte.is_ascii_graphic(), "{value:?}: {key:?}");
            }
        }
    }
    refused(&["тест", "\"тест\"", "a\u{202e}b", "é"]);
}

#[test]
fn a_key_has_at_most_255_characters() {
    let longest = "a".repeat(255);
    assert_eq!(parse(&longest).as_ref(), Ok(&longest));
    assert_eq!(parse(format!("\"{longest}\"")).as_ref(), Ok(&longest));
    // 255 characters that are 510 bytes on the wire.
    assert_eq!(
        parse(format!("\"{}\"", r#"\""#.repeat(255))),
        Ok("\"".repeat(255))
    );

    let hex = "0123456789abcdef".repeat(188);
    for long in ["a".repeat(256), "a".repeat(100_000), hex] {
        assert!(parse(&long).is_err());
        assert!(parse(format!("\"{long}\"")).is_err());
    }
}

#[test]
fn a_format_can_only_narrow_the_length() {
    let format = KeyFormat::default().with_min_length(3).with_max_length(5);
    assert!(parse_as(&format, "ab").is_err());
    assert!(parse_as(&format, "\"ab\"").is_err());
    assert!(parse_as(&format, "abc").is_ok());
    assert!(parse_as(&format, "abcde").is_ok());
    assert!(parse_as(&format, "abcdef").is_err());

    let beyond = KeyFormat::default()
        .with_min_length(0)
        .with_max_length(1000);
    assert!(parse_as(&beyond, "a".repeat(256)).is_err());
    assert!(parse_as(&beyond, "").is_err());
}

#[test]
fn a_format_can_demand_a_hyphenated_uuid() {
    let id = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    let format = KeyFormat::uuid();
    assert_eq!(parse_as(&format, id).as_deref(), Ok(id));
    assert_eq!(parse_as(&format, format!("\"{id}\"")).as_deref(), Ok(id));
    for other in [
        "abc".to_owned(),
        id.replace('-', ""),
        format!("{{{id}}}"),
        format!("urn:uuid:{id}"),
        id.replace("8e", "8g"),
        id.replace("-4", "4-"),
        // As long as a UUID, but braced and without its hyphens.
        format!("{{{}}}aa", id.replace('-', "")),
    ] {
        assert!(parse_as(&format, &other).is_err(), "{other}");
    }
}

/// What a log shows tells nobody the key.
#[test]
fn the_debug_form_hides_the_key() {
    let key = IdempotencyKey::new("secret-key").unwrap();
    assert_eq!(format!("{key:?}"), "IdempotencyKey(<10 bytes>)");
}

#[test]
fn parameters_must_be_well_formed() {
    for good in [
        "",
        ";a",
        ";a=1",
        "; a=1;  b",
        ";*=1",
        ";a-b_c.d*9=-1",
        ";a=1.5",
        ";a=123456789012345",
        ";a=123456789012.123",
        ";a=\"x\\\"y\"",
        ";a=:YWJj:",
        ";a=:YQ==:",
        ";a=:YQ:",
        ";a=::",
        ";a=?0",
        ";a=?1",
        ";a=tok",
        ";a=*/:!#$",
        ";a=@-5",
        ";a=%\"f%c3%bc\"",
        ";a=1;a=2",
        ";a ",
    ] {
        let value = format!("\"k\"{good}");
        assert_eq!(parse(&value).as_deref(), Ok("k"), "{value}");
    }
    for bad in [
        ";",
        " ;a",
        ";A",
        ";1",
        ";a=",
        ";a =1",
        ";a= 1",
        ";;a",
        ";a;",
        ";a=-",
        ";a=1.",
        ";a=.5",
        ";a=1.2345",
        ";a=--1",
        ";a=1234567890123456",
        ";a=1234567890123.1",
        ";a=\"x",
        ";a=:Y:",
        ";a=:YWJj",
        ";a=:Y=WJ:",
        ";a=:YWJj=:",
        ";a=:YQ===:",
        ";a=?2",
        ";a=?",
        ";a=@1.5",
        ";a=@",
        ";a=%\"%C3%BC\"",
        ";a=%\"%c3\"",
        ";a=%x",
        ";a=%\"x",
        ";a=(1)",
        ";a=1 2",
        ",",
        "x",
    ] {
        let value = format!("\"k\"{bad}");
        assert!(parse(&value).is_err(), "{value} was taken for a key");
    }
}

/// What the `sfv` crate makes of the value, if it is a string that the default rule takes for a key.
fn by_sfv(value: &[u8]) -> Option<String> {
    let item = sfv::Parser::new(value).parse::<sfv::Item>().ok()?;
    let text = item.bare_item.as_string()?.as_str().to_owned();
    let is_key =
        (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_key.then_some(text)
}

/// Quoted strings with something like parameters behind them, mostly right.
fn almost_items() -> impl Strategy<Value = String> {
    let string = r#"([!-~]|\\["\\]){0,12}"#;
    let key = "[a-z*][a-z0-9_.*-]{0,3}|[A-Z0-9]";
    let value = prop_oneof![
        "-?[0-9]{0,16}",
        r"-?[0-9]{0,13}\.[0-9]{0,4}",
        "\"[ -~]{0,4}\"",
        "[A-Za-z*][!-~]{0,4}",
        ":[A-Za-z0-9+/]{0,6}={0,3}:",
        r"\?[0-2]",
        r"@-?[0-9]{0,4}(\.1)?",
        "%\"(%[0-9a-f]{2}|%c3%[89ab][0-9a-f]|[ -~]){0,4}\"",
        "[ -~]{0,3}",
    ];
    let parameter =
        (" {0,1};[ \t]{0,2}", key, proptest::option::of(value)).prop_map(|(before, key, value)| {
            let value = value.map(|value| format!("={value}")).unwrap_or_default();
            before + &key + &value
        });
    let behind = proptest::collection::vec(parameter, 0..3).prop_map(|all| all.concat());
    (" {0,1}", string, behind, " {0,1}")
        .prop_map(|(before, string, behind, after)| format!("{before}\"{string}\"{behind}{after}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn quoted_values_are_read_as_the_sfv_crate_reads_them(value in almost_items()) {
        prop_assert_eq!(parse(&value).ok(), by_sfv(value.as_bytes()));
    }

    #[test]
    fn any_value_that_starts_with_a_quote_is_read_as_the_sfv_crate_reads_it(value in "\"[ -~\t\u{80}]{0,12}") {
        prop_assert_eq!(parse(&value).ok(), by_sfv(value.as_bytes()));
    }

    #[test]
    fn every_key_can_be_sent_quoted(key in "[!-~]{1,255}") {
        let quoted = format!("\"{}\"", key.replace('\\', r"\\").replace('"', r#"\""#));
        prop_assert_eq!(parse(&quoted).unwrap(), key);
    }
}
