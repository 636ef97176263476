//! Records, for people.

use tower_idempotency::{
    RecordKey, SavedResponse,
    store::{Counts, Listed, Record, RecordState},
};

use crate::text::{escaped_bytes, time};

/// One line per field.
pub(crate) fn record(key: &RecordKey, record: &Record, with_body: bool) -> String {
    let mut fields = vec![
        ("record key", key.to_hex()),
        ("state", state(record).to_owned()),
        ("attempt", record.attempt.to_string()),
        ("fence", record.fence.to_string()),
        ("expires in", time(record.expires_in)),
    ];
    match &record.state {
        RecordState::InFlight { lease_left, .. } => fields.push(("lease left", time(*lease_left))),
        RecordState::Completed(saved) => fields.extend(response(saved, with_body)),
        RecordState::Unknown | _ => {}
    }
    let mut lines = String::new();
    for (name, value) in fields {
        lines.push_str(&format!("{name:<12}{value}\n"));
    }
    lines
}

fn response(saved: &SavedResponse, with_body: bool) -> Vec<(&'static str, String)> {
    let (Some(status), Some(headers), Some(body)) = (saved.status(), saved.headers(), saved.body())
    else {
        return vec![("response", "not kept".to_owned())];
    };
    let length = body.len();
    let mut fields = vec![("response", format!("{status}, a body of {length} bytes"))];
    if with_body {
        let header = |name: &str, value: &[u8]| format!("{name}: {}", escaped_bytes(value));
        let headers = headers.iter();
        fields.extend(
            headers.map(|(name, value)| ("header", header(name.as_str(), value.as_bytes()))),
        );
        fields.push(("body", escaped_bytes(body)));
    }
    fields
}

pub(crate) fn list_head() -> String {
    format!(
        "{:64}  {:9}  {:>16}  {:>7}  {:>14}  {:>16}\n",
        "RECORD KEY", "STATE", "AGE", "ATTEMPT", "LEASE LEFT", "EXPIRES IN"
    )
}

pub(crate) fn listed(listed: &Listed) -> String {
    let record = &listed.record;
    let lease = match &record.state {
        RecordState::InFlight { lease_left, .. } => time(*lease_left),
        RecordState::Completed(_) | RecordState::Unknown | _ => "-".to_owned(),
    };
    format!(
        "{:64}  {:9}  {:>16}  {:>7}  {lease:>14}  {:>16}\n",
        listed.key.to_hex(),
        state(record),
        time(listed.age),
        record.attempt,
        time(record.expires_in),
    )
}

pub(crate) fn counts(counts: &Counts) -> String {
    let bytes = counts
        .response_bytes
        .map_or("-".to_owned(), |bytes| bytes.to_string());
    let Counts {
        in_flight,
        unknown,
        completed,
        expired,
        ..
    } = counts;
    format!(
        "in flight       {in_flight:>12}\nunknown         {unknown:>12}\ncompleted       {completed:>12}\n\
         expired         {expired:>12}\nresponse bytes  {bytes:>12}\n"
    )
}

pub(crate) fn state(record: &Record) -> &'static str {
    match record.state {
        RecordState::InFlight { .. } => "in_flight",
        RecordState::Completed(_) => "completed",
        RecordState::Unknown | _ => "unknown",
    }
}
