//! The picture in the README.

use std::path::Path;

use crate::{checkout::Checkout, http_proxy::Fault};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/checkout.png");

/// With `PICTURES` in the environment it also replaces that of the README.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_after_a_lost_answer_is_a_picture() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.script([Fault::LoseAnswer]);
    checkout.browser.click("pay").await;
    checkout.charged_once().await;
    let (picture, expected) = checkout.browser.picture_of("main").await;
    assert_eq!(size(&picture), expected);

    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkout.png");
    std::fs::write(&target, &picture).expect("a file");
    if std::env::var_os("PICTURES").is_some() {
        std::fs::write(README, &picture).expect("a file");
    }
    let shown = std::fs::read(README).expect("the picture of the README");
    // Other fonts make another height.
    assert_eq!(size(&shown).0, expected.0, "PICTURES=1 makes it anew");
    checkout.close().await;
}

/// Of a PNG, in pixels.
fn size(picture: &[u8]) -> (u32, u32) {
    let (head, rest) = picture.split_at(16);
    assert_eq!(head, b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR");
    let number = |at: usize| {
        let bytes = rest[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(bytes)
    };
    (number(0), number(4))
}
