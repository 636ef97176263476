//! Mistakes, and contents that nobody should have saved.

use std::process::Stdio;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use tower_idempotency::{RecordKey, SavedResponse};

use crate::{
    records::digits,
    shop::sqlite_lease,
    tool::{Told, command, ops, told},
};

const KEY: RecordKey = RecordKey::from_bytes([7; 32]);

#[tokio::test]
async fn wrong_usage_is_told_and_is_no_failure_of_the_store() {
    let shop = sqlite_lease().await.expect("a file");
    let long = "a".repeat(256);
    for arguments in [
        &[][..],
        &["stats", "extra"],
        &["inspect"],
        &["inspect", "12"],
        &["inspect", &"g".repeat(64)],
        &["inspect", &"é".repeat(32)],
        &["inspect", "--key", "k"],
        &["inspect", "--scope", "s"],
        &["inspect", "--scope", "", "--key", "k"],
        &["inspect", "--scope", "s", "--key", ""],
        &["inspect", "--scope", "s", "--key", "a\u{1b}[31mb"],
        &["inspect", "--scope", "s", "--key", "a\nb"],
        &["inspect", "--scope", "s", "--key", "a, b"],
        &["inspect", "--scope", "s", "--key", &long],
        &["inspect", "--scope", "s", "--key", "k", &digits(&KEY)],
        &["inspect", "--scope", "s", "--single-tenant", "--key", "k"],
        &["list", "--older-than", "ten"],
        &["list", "--limit", "-1"],
        &["purge", "--batch", "0"],
        &["forget", "--yes"],
        &["stats", "--table", "leases"],
    ] {
        let refused = ops(&[&[shop.url.as_str()], arguments].concat()).await;
        refused.assert_code(2);
        assert_eq!(refused.out, "", "{arguments:?}");
        let shown: Vec<_> = refused
            .err
            .chars()
            .filter(|shown| shown.is_control())
            .collect();
        assert!(
            shown.iter().all(|shown| *shown == '\n'),
            "{:?}",
            refused.err
        );
    }
}

#[tokio::test]
async fn a_password_is_never_shown() {
    let long = "postgres://shop:s3cret@127.0.0.1:1/shop";
    for arguments in [
        &[long, "stats"][..],
        &["postgres://shop:s3cret@127.0.0.1:port/shop", "stats"],
        &[
            "postgres://shop:s3cret' x@127.0.0.1/shop",
            "stats",
            "--table",
            "a;b",
        ],
        &["mysql://shop:s3cret@127.0.0.1:1/shop", "stats"],
        &["oracle://shop:s3cret@127.0.0.1:1/shop", "stats"],
        &["sqlite://shop:s3cret@127.0.0.1:1/shop", "stats"],
        &["stats", long],
        &[long, long],
        &[long, "stats", "it's postgres://shop:a 's3cret@h"],
        &[long, "stats", "--table", long],
        &[
            "postgres://127.0.0.1:1/shop?password=s3cret",
            "stats",
            "postgres://h/?password=s3cret",
        ],
    ] {
        let refused = ops(arguments).await;
        assert!(
            [2, 3].contains(&refused.code),
            "{arguments:?}: {}",
            refused.code
        );
        assert!(!refused.err.contains("s3cret"), "{}", refused.err);
        assert_eq!(refused.out, "");
    }
}

#[tokio::test]
async fn a_url_can_come_from_the_environment() {
    let shop = sqlite_lease().await.expect("a file");
    let mut ping = command(&["-", "ping"]);
    let output = ping.env("STORE_URL", &shop.url).output().await;
    assert_eq!(told(output.expect("its output")).assert_code(0).out, "ok\n");
    ops(&["-", "ping"]).await.assert_code(2);
}

#[tokio::test]
async fn a_file_that_is_not_there_is_not_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}/shop.db", directory.path().display());
    ops(&[&url, "ping"]).await.assert_code(3);
    let files = directory.path().read_dir().expect("a directory");
    assert_eq!(files.count(), 0);
}

#[tokio::test]
async fn what_was_saved_gives_the_terminal_no_orders() {
    let shop = sqlite_lease().await.expect("a file");
    let orders = "\u{1b}]0;owned\u{7}\u{9b}31m\r\u{202e}txt.exe\u{7f}\n";
    let body = [orders.as_bytes(), b"\xff\x1b[2J"].concat();
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_bytes("\u{9b}2J\u{202e}".as_bytes()).expect("a value");
    headers.insert("x-hostile", value);
    let response = SavedResponse::new(StatusCode::OK, headers, Bytes::from(body), None);
    shop.complete(KEY, &response).await;

    for arguments in [&["--body"][..], &["--body", "--json"]] {
        let digits = digits(&KEY);
        let shown = shop.ops(&[&["inspect", &digits], arguments].concat()).await;
        shown.assert_code(0);
        assert!(shown.out.contains("x-hostile"));
        let is_plain = |shown: char| shown == '\n' || shown.is_ascii_graphic() || shown == ' ';
        assert!(shown.out.chars().all(is_plain), "{:?}", shown.out);
    }
}

/// The tool with this output: `Command::output` would put a pipe in its place.
async fn writing_to(output: impl Into<Stdio>, arguments: &[&str]) -> Told {
    let mut tool = command(arguments);
    let tool = tool.stdout(output).stderr(Stdio::piped()).spawn();
    let output = tool.expect("the tool").wait_with_output().await;
    told(output.expect("its end"))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_output_that_can_not_be_written_is_a_failure_and_no_missing_record() {
    let shop = sqlite_lease().await.expect("a file");
    for arguments in [&["stats"][..], &["stats", "--json"], &["list"], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let arguments = [&[shop.url.as_str()], arguments].concat();
        let failed = writing_to(full.expect("a device"), &arguments).await;
        failed.assert_code(3);
        assert!(failed.err.contains("output"), "{}", failed.err);
    }
}

#[tokio::test]
async fn a_reader_that_has_had_enough_is_no_failure() {
    let shop = sqlite_lease().await.expect("a file");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let listed = writing_to(writer, &[&shop.url, "list"]).await;
    listed.assert_code(0);
}
