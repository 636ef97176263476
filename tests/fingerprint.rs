//! Which requests have the same fingerprint.

use http::{Request, header::HeaderName, request::Parts};
use tower_idempotency::{Fingerprint, FingerprintBy, Tag};

fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn post(uri: &str) -> Parts {
    parts("POST", uri, &[])
}

fn of(by: &FingerprintBy, parts: &Parts, body: &str) -> Fingerprint {
    Fingerprint::of(&by.identity(parts, Some(body.as_bytes())))
}

/// All of them differ from each other, in each of these modes.
#[track_caller]
fn all_differ(modes: &[FingerprintBy], requests: &[Parts]) {
    for by in modes {
        let all: Vec<_> = requests.iter().map(|parts| of(by, parts, "1")).collect();
        distinct(&all);
    }
}

#[track_caller]
fn distinct(all: &[Fingerprint]) {
    for (i, one) in all.iter().enumerate() {
        let twin = all.iter().skip(i + 1).position(|other| one == other);
        assert_eq!(
            twin, None,
            "what number {i} is the same as, counted from there"
        );
    }
}

fn built_in() -> Vec<FingerprintBy> {
    vec![
        FingerprintBy::exact(),
        FingerprintBy::json(),
        FingerprintBy::head_only(),
    ]
}

fn every() -> Vec<FingerprintBy> {
    let mut modes = built_in();
    modes.push(FingerprintBy::by(|_, body| body.to_vec()));
    modes
}

#[test]
fn another_method_or_path_is_another_request() {
    all_differ(
        &every(),
        &[
            post("/orders"),
            post("/orders/"),
            post("/orders/7/cancel"),
            post("/Orders"),
            post("/order/s"),
            post("/"),
            parts("PATCH", "/orders", &[]),
            parts("PUT", "/orders", &[]),
            parts("post", "/orders", &[]),
            parts("POS", "/T/orders", &[]),
        ],
    );
}

#[test]
fn the_raw_query_belongs_to_the_request() {
    all_differ(
        &every(),
        &[
            post("/x"),
            post("/x?"),
            post("/x?dry=1"),
            post("/x?to=alice"),
            post("/x?to=mallory"),
            post("/x?a=1&b=2"),
            post("/x?b=2&a=1"),
            post("/x?a"),
            post("/x?a="),
            post("/x?%41"),
            post("/x?A"),
            post("/%41"),
            post("/A"),
            post("/x/?a"),
            post("/x?a?"),
        ],
    );
}

#[test]
fn host_and_scheme_do_not_belong_to_the_request() {
    let by = FingerprintBy::exact();
    let absolute = post("https://api.example.org/x?a=1");
    assert_eq!(of(&by, &absolute, "1"), of(&by, &post("/x?a=1"), "1"));
}

#[test]
fn content_type_and_encoding_belong_to_the_request() {
    let heads: [&[(&str, &str)]; 8] = [
        &[],
        &[("content-type", "")],
        &[("content-type", "application/json")],
        &[("content-type", "application/json;charset=utf-8")],
        &[
            ("content-type", "application/json"),
            ("content-type", "application/json"),
        ],
        &[("content-encoding", "application/json")],
        &[
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ],
        &[("content-type", "application/jsongzip")],
    ];
    all_differ(
        &built_in(),
        &heads.map(|headers| parts("POST", "/x", headers)),
    );
}

#[test]
fn other_headers_count_only_if_chosen() {
    let [plain, one, two, swapped, empty] = [
        &[][..],
        &[("x-version", "1")],
        &[("x-version", "1"), ("x-version", "2")],
        &[("x-version", "2"), ("x-version", "1")],
        &[("x-version", "")],
    ]
    .map(|headers| parts("POST", "/x", headers));
    let by = FingerprintBy::exact();
    assert_eq!(of(&by, &plain, "1"), of(&by, &two, "1"));

    let version = HeaderName::from_static("x-version");
    for by in [
        by.with_header(version.clone()),
        FingerprintBy::by(|_, _| Vec::new()).with_header(version),
    ] {
        distinct(&[&plain, &one, &two, &swapped, &empty].map(|parts| of(&by, parts, "1")));
    }
}

/// Two chosen headers can't stand for each other, nor a chosen one for the content type.
#[test]
fn a_value_counts_under_its_own_header_only() {
    let by = FingerprintBy::exact()
        .with_header(HeaderName::from_static("a"))
        .with_header(HeaderName::from_static("b"));
    let heads = [
        [("a", "1")],
        [("b", "1")],
        [("content-type", "1")],
        [("content-encoding", "1")],
    ];
    distinct(&heads.map(|headers| of(&by, &parts("POST", "/x", &headers), "")));
}

#[test]
fn exact_compares_the_bytes_of_the_body() {
    let (by, parts) = (FingerprintBy::exact(), post("/x"));
    assert_eq!(of(&by, &parts, r#"{"a":1}"#), of(&by, &parts, r#"{"a":1}"#));
    assert_ne!(
        of(&by, &parts, r#"{"a":1}"#),
        of(&by, &parts, r#"{"a": 1}"#)
    );
    assert_ne!(of(&by, &parts, ""), of(&by, &parts, " "));
    assert_eq!(
        Fingerprint::of(&by.identity(&parts, None)),
        of(&by, &parts, "")
    );
}

/// What ends one field and begins the next is not up to the client.
#[test]
fn fields_do_not_run_into_each_other() {
    let by = FingerprintBy::exact();
    distinct(&[
        of(&by, &parts("POST", "/x", &[("content-type", "a")]), "b"),
        of(&by, &parts("POST", "/x", &[("content-type", "ab")]), ""),
        of(&by, &parts("POST", "/x", &[]), "ab"),
        of(&by, &parts("POST", "/xa", &[]), "b"),
        of(&by, &parts("POST", "/x?a", &[]), "b"),
        of(&by, &parts("POST", "/x?ab", &[]), ""),
    ]);
}

/// A form that was edited and sent again counts as the first one.
#[test]
fn head_only_leaves_the_body_out() {
    let (by, parts) = (FingerprintBy::head_only(), post("/x"));
    assert_eq!(of(&by, &parts, "1"), of(&by, &parts, "2"));
    assert_eq!(
        of(&by, &parts, "1"),
        Fingerprint::of(&by.identity(&parts, None))
    );
}

/// A retry of a multipart upload has another boundary, in head and body.
#[test]
fn a_closure_can_look_past_a_multipart_boundary() {
    fn upload(boundary: &str, text: &str) -> (Parts, String) {
        let parts = parts(
            "POST",
            "/x",
            &[(
                "content-type",
                &format!("multipart/form-data; boundary={boundary}"),
            )],
        );
        (
            parts,
            format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{text}\r\n--{boundary}--\r\n"
            ),
        )
    }
    let by = FingerprintBy::by(|parts, body| {
        let content_type = parts.headers["content-type"]
            .to_str()
            .expect("a content type");
        let (_, boundary) = content_type.split_once("boundary=").expect("a boundary");
        String::from_utf8_lossy(body)
            .replace(boundary, "")
            .into_bytes()
    });
    let [x, y, other] = [
        upload("X", "text"),
        upload("Y", "text"),
        upload("X", "other"),
    ];
    assert_eq!(of(&by, &x.0, &x.1), of(&by, &y.0, &y.1));
    assert_ne!(of(&by, &x.0, &x.1), of(&by, &other.0, &other.1));
    assert_ne!(
        of(&FingerprintBy::exact(), &x.0, &x.1),
        of(&FingerprintBy::exact(), &y.0, &y.1)
    );
}

/// A rolling upgrade or a changed mode: the stored form, if this request's layer can make it.
#[test]
fn a_fingerprint_in_another_form_needs_what_that_form_reads() {
    let parts = post("/x");
    let body = Some(&br#"{"a":1}"#[..]);
    let custom = || FingerprintBy::by(|_, body| body.to_vec());
    let tag = |by: &FingerprintBy| Fingerprint::of(&by.identity(&parts, body)).tag();
    let [exact, json, head_only, by] = [
        FingerprintBy::exact(),
        FingerprintBy::json(),
        FingerprintBy::head_only(),
        custom(),
    ]
    .map(|by| tag(&by));
    let unknown = Tag::from_u16(0x8001);

    for (identity, computable) in [
        (
            FingerprintBy::exact().identity(&parts, body),
            vec![exact, json, head_only],
        ),
        (
            FingerprintBy::json().identity(&parts, body),
            vec![exact, json, head_only],
        ),
        (
            FingerprintBy::head_only().identity(&parts, body),
            vec![exact, json, head_only],
        ),
        (
            FingerprintBy::head_only().identity(&parts, None),
            vec![head_only],
        ),
        (
            custom().identity(&parts, body),
            vec![exact, json, head_only, by],
        ),
    ] {
        for tag in [exact, json, head_only, by, unknown] {
            let made = Fingerprint::in_form(&identity, tag);
            assert_eq!(
                made.map(|made| made.tag()),
                computable.contains(&tag).then_some(tag),
                "{identity:?}"
            );
        }
    }
    // And it is the one that a layer of that mode makes.
    let converted = Fingerprint::in_form(&custom().identity(&parts, body), json);
    assert_eq!(
        converted,
        Some(Fingerprint::of(
            &FingerprintBy::json().identity(&parts, body)
        ))
    );
}

/// Stored fingerprints outlive the release that made them: these numbers and digests never change.
#[test]
fn fingerprints_stay_the_same_from_release_to_release() {
    let parts = parts(
        "POST",
        "/charges?dry=1",
        &[("content-type", "application/json"), ("x-version", "2")],
    );
    let custom = FingerprintBy::by(|_, body| body.iter().rev().copied().collect());
    let version = HeaderName::from_static("x-version");
    for (by, body, tag, digest) in [
        (
            FingerprintBy::exact(),
            r#"{"b":1,"a":"\u0061"}"#,
            0x0101,
            "512c2834258c81ac9a8809e821ffd6efdaba099d0e98dcb7a4e5a53679bd30b3",
        ),
        (
            FingerprintBy::json(),
            r#"{"b":1,"a":"\u0061"}"#,
            0x0102,
            "5568b3e050a2050499162a1f5eba226dc79ca96c0dc4138655ccb24fd25cfc7b",
        ),
        (
            FingerprintBy::json(),
            r#"{"b":1,"#,
            0x0102,
            "77dc3b3e9aa54b2a378d51f0ecdd0227d6a7f3735ad2e7ead187a6826869ecf3",
        ),
        (
            FingerprintBy::head_only(),
            "",
            0x0103,
            "9ea3cf16aa32916cdcf7cf7a195bce95ae424e7877617d3bdda37cf82ed68492",
        ),
        (
            custom,
            r#"{"b":1}"#,
            0x0104,
            "52c7328e8d58ffa642846f7acc5d2153c88af02ef9ab6ea5de5cbf25d78f9f9f",
        ),
        (
            FingerprintBy::exact().with_header(version),
            "",
            0x0101,
            "f7071e74500305be67c0a0a8bfe62b1a6141c622a182aa069b310b524c018c77",
        ),
    ] {
        let made = of(&by, &parts, body);
        assert_eq!(made.tag().to_u16(), tag);
        assert_eq!(
            blake3::Hash::from_bytes(*made.digest()).to_hex().as_str(),
            digest,
            "{by:?}"
        );
        assert_eq!(Fingerprint::new(Tag::from_u16(tag), *made.digest()), made);
    }
}

#[cfg(feature = "axum")]
#[test]
fn the_target_is_the_one_the_client_sent_not_what_nesting_left_of_it() {
    use axum::extract::OriginalUri;

    let nested = |original: &'static str, inner: &str| {
        let mut parts = post(inner);
        parts
            .extensions
            .insert(OriginalUri(original.parse().expect("a target")));
        parts
    };
    let by = FingerprintBy::exact();
    let outer = of(&by, &post("/api/x?a=1"), "1");
    assert_eq!(outer, of(&by, &nested("/api/x?a=1", "/x?a=1"), "1"));
    assert_ne!(
        of(&by, &nested("/a/x", "/x"), "1"),
        of(&by, &nested("/b/x", "/x"), "1")
    );
}

#[test]
fn the_debug_forms_tell_neither_body_nor_digest() {
    let (by, parts) = (FingerprintBy::json(), post("/x?token=secret"));
    let identity = by.identity(&parts, Some(b"secret"));
    assert!(!format!("{identity:?}").contains("secret"));
    let shown = format!("{:?}", Fingerprint::of(&identity));
    assert!(
        shown.starts_with("Fingerprint(0102:") && shown.len() < 40,
        "{shown}"
    );
}
