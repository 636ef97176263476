//! Forgetting, with somebody at the terminal.

use std::{fs::File, io::Write, process::Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tower_idempotency::{RecordKey, SavedResponse};

use crate::{
    records::digits,
    shop::{HOUR, Shop, sqlite_lease},
    tool::{Told, command, told},
};

const KEY: RecordKey = RecordKey::from_bytes([7; 32]);

/// `forget` on a terminal on which this is typed.
async fn forget(shop: &Shop, typed: &str) -> Told {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&keyboard).expect("a terminal of our own");
    unlockpt(&keyboard).expect("a terminal to open");
    let name = ptsname(&keyboard, Vec::new()).expect("its name");
    let terminal = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().expect("a path"))
        .expect("the terminal");
    let mut keyboard = File::from(keyboard);
    keyboard.write_all(typed.as_bytes()).expect("a keyboard");
    let mut forget = command(&[&shop.url, "forget", &digits(&KEY)]);
    let output = forget.stdin(Stdio::from(terminal)).output().await;
    told(output.expect("the tool's output"))
}

#[tokio::test]
async fn a_key_is_forgotten_by_yes_and_by_nothing_else() {
    let shop = sqlite_lease().await.expect("a file");
    shop.complete(KEY, &SavedResponse::tombstone()).await;
    // The last is the end of the input.
    for typed in ["no\n", "y\n", "\n", "YES\n", "\u{4}"] {
        let refused = forget(&shop, typed).await;
        refused.assert_code(1);
        assert!(
            refused.err.contains("nothing was forgotten"),
            "{}",
            refused.err
        );
        assert!(shop.has(&KEY).await, "{typed:?}");
    }
    let done = forget(&shop, "yes\n").await;
    assert_eq!(done.assert_code(0).out, "forgotten\n");
    assert!(!shop.has(&KEY).await);
}

#[tokio::test]
async fn what_is_at_stake_is_told_before_it_is_asked() {
    let shop = sqlite_lease().await.expect("a file");
    let claim = shop.claim(KEY).await;
    let warned = forget(&shop, "no\n").await.err;
    assert!(
        warned.contains("in_flight") && warned.contains("has this key now"),
        "{warned}"
    );
    shop.store.abandon(&claim, HOUR).await.expect("a database");
    let warned = forget(&shop, "no\n").await.err;
    assert!(
        warned.contains("unknown") && warned.contains("may have taken effect"),
        "{warned}"
    );
    assert!(shop.store.forget(&KEY).await.expect("a database"));
    shop.complete(KEY, &SavedResponse::tombstone()).await;
    let warned = forget(&shop, "no\n").await.err;
    assert!(
        warned.contains("completed") && warned.contains("done again"),
        "{warned}"
    );
}
