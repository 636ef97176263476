use serde_json::{Value, json};
use tower_idempotency::{
    RecordKey,
    store::{ListRecords, Record},
};

use crate::{
    arguments::{Arguments, Command},
    failure::Failure,
    forget, json, list, show,
    stores::Opened,
    text::{print, print_json},
};

pub(crate) async fn run(opened: &Opened, arguments: &Arguments) -> Result<(), Failure> {
    let (store, as_json) = (&opened.store, arguments.json);
    match &arguments.command {
        Command::Inspect { target, body } => {
            let (key, record) = find(opened, target.record_key(), as_json).await?;
            let document = || json::record(&key, &record, *body);
            tell(as_json, document, || show::record(&key, &record, *body))
        }
        Command::List { older_than, limit } => {
            let records = records(opened)?;
            list::print_all(records, *older_than, *limit, as_json).await
        }
        Command::Forget { target, yes } => {
            let (key, record) = find(opened, target.record_key(), as_json).await?;
            if !yes {
                forget::confirm(&key, &record)?;
                let now = store.inspect(&key).await?;
                forget::refuse_another(&record, now.as_ref())?;
            }
            let forgotten = store.forget(&key).await?;
            let document = || json!({ "record_key": key.to_hex(), "forgotten": forgotten });
            let text = || {
                if forgotten {
                    "forgotten\n"
                } else {
                    "it had gone already\n"
                }
            };
            tell(as_json, document, || text().to_owned())
        }
        Command::Purge { batch } => {
            let mut purged = 0;
            loop {
                let some = store.purge_expired(*batch).await?;
                purged += some;
                if some < u64::from(*batch) {
                    break;
                }
            }
            let document = || json!({ "purged": purged });
            tell(as_json, document, || format!("{purged} purged\n"))
        }
        Command::Stats => {
            let counts = records(opened)?.count_records().await?;
            let document = || json::counts(&counts, store.kind());
            tell(as_json, document, || show::counts(&counts))
        }
        Command::Ping => {
            store.ping().await?;
            tell(as_json, || json!({ "ok": true }), || "ok\n".to_owned())
        }
    }
}

fn records(opened: &Opened) -> Result<&dyn ListRecords, Failure> {
    let records = opened.records.as_deref();
    records.ok_or_else(|| Failure::usage("this store can't list or count its records"))
}

async fn find(
    opened: &Opened,
    key: Option<RecordKey>,
    as_json: bool,
) -> Result<(RecordKey, Record), Failure> {
    let key = key.ok_or_else(|| Failure::usage("which record?"))?;
    match opened.store.inspect(&key).await? {
        Some(record) => Ok((key, record)),
        None => {
            let digits = key.to_hex();
            if as_json {
                print_json(&json!({ "record_key": digits, "state": "absent" }))?;
            }
            Err(Failure::refused(format!(
                "there is no record {digits}, or it has expired"
            )))
        }
    }
}

fn tell(
    as_json: bool,
    document: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match as_json {
        true => print_json(&document()),
        false => print(&text()),
    }
}
