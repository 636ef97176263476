//! The bytes of a saved response: golden ones, and what becomes of damaged ones.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::{collection, option, prelude::*};
use tower_idempotency::{SavedResponse, StoreErrorKind};

/// As version 1 writes it: status 201, `location: /charges/7`, `x-tag: a`, `x-tag: <0xe4>`, body `{"id":7}`, trailer `grpc-status: 0`.
const GOLDEN: &str = "\
    01 01 00c9 00000003 00000008 6c6f636174696f6e 0000000a 2f636861726765732f37 00000005 \
     782d746167 00000001 61 00000005 782d746167 00000001 e4 00000008 7b226964223a377d 01 \
     00000001 0000000b 677270632d737461747573 00000001 30";

fn golden_response() -> SavedResponse {
    let headers = headers(&[
        ("location", b"/charges/7"),
        ("x-tag", b"a"),
        ("x-tag", b"\xe4"),
    ]);
    let trailers = trailers();
    SavedResponse::new(
        StatusCode::CREATED,
        headers,
        Bytes::from_static(b"{\"id\":7}"),
        Some(trailers),
    )
}

fn trailers() -> HeaderMap {
    headers(&[("grpc-status", b"0")])
}

fn headers(fields: &[(&'static str, &[u8])]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value).expect("a value"),
            )
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .collect();
    let byte = |pair: &[u32]| pair.iter().fold(0, |byte, digit| byte * 16 + digit);
    digits.chunks(2).map(|pair| byte(pair) as u8).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes to something, or is refused for its version and nothing else.
#[track_caller]
fn decode_damaged(bytes: Vec<u8>) -> Option<SavedResponse> {
    let version = bytes.first().copied();
    match SavedResponse::decode(bytes) {
        Ok(saved) => Some(saved),
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Other);
            assert!(version > Some(1), "version {version:?} was refused");
            None
        }
    }
}

#[track_caller]
fn reads_as_tombstone(bytes: Vec<u8>) {
    assert_eq!(
        decode_damaged(bytes.clone()),
        Some(SavedResponse::tombstone()),
        "{}",
        to_hex(&bytes)
    );
}

/// Records outlive the release that wrote them.
#[test]
fn the_bytes_stay_the_same_from_release_to_release() {
    assert_eq!(to_hex(&golden_response().encode()), GOLDEN.replace(' ', ""));
    assert_eq!(
        SavedResponse::decode(hex(GOLDEN)).unwrap(),
        golden_response()
    );

    let bare = SavedResponse::new(StatusCode::NO_CONTENT, HeaderMap::new(), Bytes::new(), None);
    assert_eq!(
        to_hex(&bare.encode()),
        "0101 00cc 00000000 00000000 00".replace(' ', "")
    );
    assert_eq!(to_hex(&SavedResponse::tombstone().encode()), "0100");
}

#[test]
fn headers_come_back_as_bytes_with_all_their_values_in_order() {
    let saved = SavedResponse::decode(golden_response().encode()).unwrap();
    let tags: Vec<_> = saved
        .headers()
        .unwrap()
        .get_all("x-tag")
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    assert_eq!(tags, [b"a", b"\xe4"]);
    let names: Vec<_> = saved
        .headers()
        .unwrap()
        .keys()
        .map(HeaderName::as_str)
        .collect();
    assert_eq!(names, ["location", "x-tag"]);
    assert_eq!(saved.trailers(), Some(&trailers()));
}

#[test]
fn no_trailers_and_empty_trailers_are_two_things() {
    for trailers in [None, Some(HeaderMap::new())] {
        let saved = SavedResponse::new(
            StatusCode::OK,
            HeaderMap::new(),
            Bytes::new(),
            trailers.clone(),
        );
        assert_eq!(
            SavedResponse::decode(saved.encode()).unwrap().trailers(),
            trailers.as_ref()
        );
    }
}

#[test]
fn a_tombstone_keeps_nothing() {
    let saved = SavedResponse::decode(SavedResponse::tombstone().encode()).unwrap();
    assert!(saved.is_tombstone());
    assert!(
        saved.status().is_none()
            && saved.headers().is_none()
            && saved.body().is_none()
            && saved.trailers().is_none()
    );
}

/// The operation was done: it must not run again because its record can't be read.
#[test]
fn a_record_that_was_cut_off_is_a_tombstone() {
    let whole = hex(GOLDEN);
    for length in 0..whole.len() {
        reads_as_tombstone(whole[..length].to_vec());
    }
}

#[test]
fn a_record_with_more_behind_it_is_a_tombstone() {
    for tail in [&[0][..], &[0xff; 9], &hex(GOLDEN)] {
        reads_as_tombstone([&hex(GOLDEN), tail].concat());
    }
    // A tombstone stays one, whatever follows.
    reads_as_tombstone(vec![1, 0, 7]);
}

#[test]
fn a_record_with_one_byte_damaged_is_read_or_is_a_tombstone() {
    let whole = hex(GOLDEN);
    let (mut read, mut tombstones, mut newer) = (0, 0, 0);
    for at in 0..whole.len() {
        for byte in 0..=0xff {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            match decode_damaged(damaged) {
                None => newer += 1,
                Some(saved) if saved.is_tombstone() => tombstones += 1,
                Some(saved) => {
                    read += 1;
                    assert_eq!(SavedResponse::decode(saved.encode()).unwrap(), saved);
                }
            }
        }
    }
    // Versions 2 to 255 in the first byte, and nowhere else.
    assert_eq!(newer, 254);
    assert!(read > whole.len() && tombstones > whole.len());
}

#[test]
fn a_later_format_is_not_taken_for_damage() {
    for version in 2..=0xff {
        let mut later = hex(GOLDEN);
        later[0] = version;
        let error = SavedResponse::decode(later).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
    }
    reads_as_tombstone(vec![0]);
    reads_as_tombstone(vec![0, 1, 0, 200]);
}

/// Lengths are believed only as far as there are bytes: none of these allocates what it claims.
#[test]
fn hostile_lengths_are_a_tombstone() {
    for record in [
        "01 01 00c8 ffffffff",
        "01 01 00c8 ffffffff 00000001 61 00000001 62",
        "01 01 00c8 00000001 ffffffff 61",
        "01 01 00c8 00000001 00000001 61 ffffffff 62",
        "01 01 00c8 00000000 ffffffff 62 00",
        "01 01 00c8 00000000 00000000 01 ffffffff",
    ] {
        reads_as_tombstone(hex(record));
    }
    // More names than a header map can hold.
    let mut many = hex("01 01 00c8 0000ffff");
    for number in 0..0xffff_u32 {
        many.extend(hex("00000008"));
        many.extend(format!("{number:08x}").into_bytes());
        many.extend(hex("00000000"));
    }
    many.extend(hex("00000000 00"));
    reads_as_tombstone(many);
}

#[test]
fn what_http_does_not_allow_is_a_tombstone() {
    for record in [
        "01 01 0063 00000000 00000000 00",                      // status 99
        "01 01 03e8 00000000 00000000 00",                      // status 1000
        "01 01 00c8 00000001 00000000 00000000 00000000 00",    // a header without a name
        "01 01 00c8 00000001 00000001 20 00000000 00000000 00", // a space for a name
        "01 01 00c8 00000001 00000001 61 00000001 0a 00000000 00", // a line feed in a value
        "01 01 00c8 00000000 00000000 02 00000000",             // neither trailers nor none
        "01 02 00c8 00000000 00000000 00",                      // an unknown kind
    ] {
        reads_as_tombstone(hex(record));
    }
}

#[test]
fn the_debug_form_shows_no_header_and_no_body() {
    assert_eq!(
        format!("{:?}", golden_response()),
        "SavedResponse(201 Created, 8 bytes)"
    );
    assert_eq!(
        format!("{:?}", SavedResponse::tombstone()),
        "SavedResponse(tombstone)"
    );
}

fn header_map() -> impl Strategy<Value = HeaderMap> {
    let value = collection::vec(
        prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8],
        0..6,
    );
    collection::vec(("[a-c]|[a-z-]{1,6}", value), 0..8).prop_map(|fields| {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::try_from(name).expect("a name");
            map.append(name, HeaderValue::from_bytes(&value).expect("a value"));
        }
        map
    })
}

fn response() -> impl Strategy<Value = SavedResponse> {
    let body = collection::vec(any::<u8>(), 0..300);
    (100..1000_u16, header_map(), body, option::of(header_map())).prop_map(
        |(status, headers, body, trailers)| {
            SavedResponse::new(
                StatusCode::from_u16(status).expect("a status"),
                headers,
                body.into(),
                trailers,
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn what_was_encoded_is_decoded_in_the_same_order(saved in response()) {
        let bytes = saved.encode();
        let decoded = SavedResponse::decode(bytes.clone()).unwrap();
        prop_assert_eq!(&decoded, &saved);
        // Equal maps may still differ in the order of names; equal bytes may not.
        prop_assert_eq!(decoded.encode(), bytes);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in collection::vec(any::<u8>(), 0..64), version in 0..3_u8, kind in 0..3_u8) {
        decode_damaged(bytes.clone());
        decode_damaged([&[version, kind][..], &bytes].concat());
    }
}
