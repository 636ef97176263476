//! Forgetting, with somebody at the terminal.

use std::{fs::File, io::Write, process::Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::io::AsyncReadExt;
use tower_idempotency::{RecordKey, SavedResponse};

use crate::{
    records::digits,
    shop::{HOUR, Shop, sqlite_lease},
    tool::{Told, command, told},
};

const KEY: RecordKey = RecordKey::from_bytes([7; 32]);

/// A keyboard, and a terminal that shows what is typed on it.
fn terminal() -> (File, File) {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&keyboard).expect("a terminal of our own");
    unlockpt(&keyboard).expect("a terminal to open");
    let name = ptsname(&keyboard, Vec::new()).expect("its name");
    let terminal = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().expect("a path"))
        .expect("the terminal");
    (File::from(keyboard), terminal)
}

/// `forget` on a terminal on which this is typed.
async fn forget(shop: &Shop, typed: &str) -> Told {
    let (mut keyboard, terminal) = terminal();
    keyboard.write_all(typed.as_bytes()).expect("a keyboard");
    let mut forget = command(&[&shop.url, "forget", &digits(&KEY)]);
    let output = forget.stdin(Stdio::from(terminal)).output().await;
    told(output.expect("the tool's output"))
}

/// `forget` on a terminal on which `yes` is typed when it has asked, and this has come about.
async fn forget_after(shop: &Shop, meanwhile: impl Future<Output = ()>) -> Told {
    let (mut keyboard, terminal) = terminal();
    let mut forget = command(&[&shop.url, "forget", &digits(&KEY)])
        .stdin(Stdio::from(terminal))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool");
    let mut asked = Vec::new();
    let mut stderr = forget.stderr.take().expect("what it asks");
    while !asked.ends_with(b"Type `yes`: ") {
        let more = stderr.read_buf(&mut asked).await.expect("a question");
        assert_ne!(more, 0, "{}", String::from_utf8_lossy(&asked));
    }
    meanwhile.await;
    keyboard.write_all(b"yes\n").expect("a keyboard");
    let output = forget.wait_with_output().await.expect("its output");
    let mut told = told(output);
    let rest = stderr.read_to_string(&mut told.err).await;
    rest.expect("what it says at its end");
    told
}

#[tokio::test]
async fn what_is_forgotten_is_what_was_shown_or_nothing() {
    let shop = sqlite_lease().await.expect("a file");
    let claim = shop.claim(KEY).await;
    let response = SavedResponse::tombstone();
    let completed = async {
        let completed = shop.store.complete(&claim, &response, HOUR).await;
        completed.expect("a database");
    };
    let refused = forget_after(&shop, completed).await;
    refused.assert_code(1);
    assert!(
        refused.err.contains("(completed, attempt 1)"),
        "{}",
        refused.err
    );
    assert_eq!(refused.out, "");
    assert!(shop.has(&KEY).await);

    // Another claim is another fence, where all that is shown is as before.
    let again = async {
        assert!(shop.store.forget(&KEY).await.expect("a database"));
        shop.complete(KEY, &response).await;
    };
    let refused = forget_after(&shop, again).await;
    refused.assert_code(1);
    assert!(refused.err.contains("another one now"), "{}", refused.err);
    assert!(shop.has(&KEY).await);

    let gone = async { assert!(shop.store.forget(&KEY).await.expect("a database")) };
    let refused = forget_after(&shop, gone).await;
    refused.assert_code(1);
    assert!(refused.err.contains("has gone"), "{}", refused.err);

    shop.complete(KEY, &response).await;
    let done = forget_after(&shop, async {}).await;
    assert_eq!(done.assert_code(0).out, "forgotten\n");
    assert!(!shop.has(&KEY).await);
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
