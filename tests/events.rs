//! The events in the sources, and the table of them in `docs/observability.md`.

use std::{collections::BTreeSet, fs, path::Path};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The level and the message.
type Event = (String, String);

/// The table's rows, by their first two columns.
fn in_the_document() -> Vec<Event> {
    let rows = include_str!("../docs/observability.md").lines();
    let events = rows.filter_map(|row| {
        let mut columns = row.strip_prefix("| ")?.split(" | ");
        let (level, message) = (columns.next()?, columns.next()?);
        let is_event = LEVELS.contains(&level);
        is_event.then(|| (level.to_owned(), message.to_owned()))
    });
    events.collect()
}

/// All text of the sources, without line breaks.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("a source");
            text.extend(source.lines().map(|line| format!("{} ", line.trim())));
        }
    }
    text
}

/// The first string literal up to there: none of the messages has an escaped quotation mark.
fn message<'a>(text: &'a str, end: &str) -> &'a str {
    let statement = text.split(end).next().expect("a statement");
    statement.split('"').nth(1).expect("a message")
}

/// `tracing::warn!(…, "…")`, and the lines `warn name(…) "…";` of the macro in `event.rs`.
fn in_the_sources() -> Vec<Event> {
    let text = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let (_, listed) = text.split_once(" events! { ").expect("the list of events");
    let (listed, _) = listed.split_once(" }").expect("its end");
    let mut events = Vec::new();
    for level in LEVELS {
        let macro_name = format!("tracing::{level}!(");
        let calls = text.split(&macro_name).skip(1);
        events.extend(calls.map(|call| (level.to_owned(), message(call, ");").to_owned())));
    }
    for line in listed.split_terminator(';') {
        let (level, event) = line.trim().split_once(' ').expect("a level");
        assert!(LEVELS.contains(&level), "{line}");
        events.push((level.to_owned(), message(event, ";").to_owned()));
    }
    events
}

#[test]
fn each_event_stands_in_the_table_once_and_no_other_does() {
    let (table, sources) = (in_the_document(), in_the_sources());
    let told: BTreeSet<_> = table.iter().collect();
    let found: BTreeSet<_> = sources.iter().collect();
    let difference: Vec<_> = told.symmetric_difference(&found).collect();
    assert!(difference.is_empty(), "{difference:#?}");
    assert_eq!(table.len(), told.len(), "rows that are there twice");
    assert!(found.len() >= 15);
}
