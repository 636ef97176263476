use std::time::Duration;

use tower_idempotency::store::ListRecords;

use crate::{
    failure::Failure,
    json, show,
    text::{print, print_json},
};

/// Page by page, the head first.
pub(crate) async fn print_all(
    records: &dyn ListRecords,
    older_than: Duration,
    limit: u32,
    as_json: bool,
) -> Result<(), Failure> {
    if !as_json {
        print(&show::list_head())?;
    }
    let (mut left, mut next) = (limit, None);
    while left > 0 {
        let page = records
            .list_unsettled(older_than, left.min(PAGE), next.as_ref())
            .await?;
        for listed in &page.records {
            match as_json {
                true => print_json(&json::listed(listed))?,
                false => print(&show::listed(listed))?,
            }
            left -= 1;
        }
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
    eprintln!("there may be more: see --limit");
    Ok(())
}

/// Records that are asked for at once: each page may cost a look at the whole table.
const PAGE: u32 = 10_000;
