//! The picture in the README.

use std::path::Path;

use crate::{browser::SIZE, checkout::Checkout};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/checkout.png");

/// With `PICTURES=1` it also replaces that of the README.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_a_picture() {
    let Some(checkout) = Checkout::open().await else {
        return;
    };
    checkout.browser.click("pay").await;
    checkout.charged_once().await;
    let picture = checkout.browser.screenshot().await;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkout.png");
    std::fs::write(&target, &picture).expect("a file");
    if std::env::var_os("PICTURES").is_some() {
        std::fs::write(README, &picture).expect("a file");
    }
    println!("{:?} {}", target, picture.len());
    let _ = SIZE;
    checkout.close().await;
}
