use sqlx::{Connection, Row, SqliteConnection, SqlitePool};

use super::error::failed;
use crate::{StoreError, StoreErrorKind};

/// A table of ours: its name among the schema versions, the shipped file that makes it, and the columns that it then has, with their
/// types.
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    pub(super) columns: &'static [(&'static str, &'static str)],
}

/// What a record has none of as long as there is none.
const NULLABLE: [&str; 2] = ["response", "steps"];

/// The version of the tables that this release makes and knows.
const VERSION: i64 = 1;

/// STRICT tables came with 3.37, RETURNING with 3.35.
const OLDEST: (u32, u32) = (3, 37);

/// Makes the table in one transaction, or does nothing if it is there.
pub(super) async fn migrate(pool: &SqlitePool, schema: &Schema) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await.map_err(failed)?;
    check_sqlite(&mut connection).await?;
    // Without the writer lock first: a server that starts must not wait for the handlers of one that is still running.
    if is_there(&mut connection, schema).await? {
        return Ok(());
    }
    // IMMEDIATE: two processes that start together migrate one after the other.
    let mut transaction = connection
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(failed)?;
    if !is_there(&mut transaction, schema).await? {
        sqlx::raw_sql(schema.script)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        // One that was there without a version may be anything.
        check_table(&mut transaction, schema).await?;
    }
    transaction.commit().await.map_err(failed)
}

/// Fails unless the table is there, and writes nothing.
pub(super) async fn check(pool: &SqlitePool, schema: &Schema) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await.map_err(failed)?;
    check_sqlite(&mut connection).await?;
    if is_there(&mut connection, schema).await? {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        format!(
            "the table of `{}` is missing: run the store's `migrate()`, or the SQL that is shipped with it",
            schema.name
        ),
    ))
}

/// Whether the table is there. One of another version is refused.
async fn is_there(connection: &mut SqliteConnection, schema: &Schema) -> Result<bool, StoreError> {
    match version(connection, schema).await? {
        None => Ok(false),
        Some(VERSION) => check_table(connection, schema).await.map(|()| true),
        Some(other) => Err(StoreError::new(
            StoreErrorKind::Other,
            format!(
                "the table of `{}` has schema version {other}, this release knows version {VERSION} only",
                schema.name
            ),
        )),
    }
}

/// A table of this version may have been made before its first release, or by hand.
async fn check_table(connection: &mut SqliteConnection, schema: &Schema) -> Result<(), StoreError> {
    let table = format!("tower_idempotency_{}", schema.name);
    let columns: Vec<Column> = sqlx::query_as(COLUMNS)
        .bind(&table)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
    let mut problems = column_problems(schema, &columns);
    let summary = sqlx::query(SUMMARY).bind(&table);
    let summary = summary.fetch_one(connection).await.map_err(failed)?;
    for (index, problem) in PROBLEMS.iter().enumerate() {
        if !summary.try_get::<bool, _>(index).map_err(failed)? {
            problems.push((*problem).to_owned());
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        format!(
            "the table `{table}` {}: `migrate()` makes it where there is none",
            problems.join(", ")
        ),
    ))
}

fn column_problems(schema: &Schema, columns: &[Column]) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, kind) in schema.columns {
        match columns.iter().find(|(found, ..)| found == name) {
            None => problems.push(format!("lacks the column `{name}`")),
            Some((_, found, ..)) if found != kind => {
                problems.push(format!("has `{name}` as {found} instead of {kind}"));
            }
            Some((_, _, true, _)) if NULLABLE.contains(name) => {
                problems.push(format!("has `{name}` as NOT NULL"));
            }
            Some(_) => {}
        }
    }
    for (name, _, is_not_null, is_filled) in columns {
        let is_ours = schema.columns.iter().any(|(ours, _)| name == ours);
        if !is_ours && *is_not_null && !is_filled {
            problems.push(format!("has `{name}` as NOT NULL without a default"));
        }
    }
    problems
}

/// Name, type, whether it is NOT NULL, and whether it is filled by itself.
type Column = (String, String, bool, bool);

/// Generated ones are hidden in their own way.
const COLUMNS: &str = "
SELECT lower(name), upper(type), \"notnull\", dflt_value IS NOT NULL OR hidden > 0 OR (pk > 0 AND upper(type) = 'INTEGER')
FROM pragma_table_xinfo(?1)";

/// One row: what [`PROBLEMS`] are the lack of. Expired rows are purged by their `rowid`.
const SUMMARY: &str = "
WITH indexes AS (
    SELECT \"unique\" AS is_unique, partial,
        (SELECT group_concat(coalesce(lower(name), '()')) FROM pragma_index_info(list.name)) || ',' AS columns
    FROM pragma_index_list(?1) AS list)
SELECT EXISTS (SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND lower(name) = ?1 AND type = 'table' AND NOT wr),
    EXISTS (SELECT 1 FROM indexes WHERE is_unique AND NOT partial AND columns = 'record_key,'),
    EXISTS (SELECT 1 FROM indexes WHERE NOT partial AND columns LIKE 'expires,%'),
    NOT EXISTS (SELECT 1 FROM indexes WHERE is_unique AND columns IS NOT 'record_key,')";
const PROBLEMS: [&str; 4] = [
    "is no plain table with a rowid",
    "lacks a unique index on `record_key` alone",
    "lacks an index on `expires`",
    "has another unique index",
];

async fn version(
    connection: &mut SqliteConnection,
    schema: &Schema,
) -> Result<Option<i64>, StoreError> {
    let any: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tower_idempotency_schema'",
    )
    .fetch_optional(&mut *connection)
    .await
    .map_err(failed)?;
    if any.is_none() {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT version FROM tower_idempotency_schema WHERE name = ?")
        .bind(schema.name)
        .fetch_optional(connection)
        .await
        .map_err(failed)
}

/// sqlx brings its own SQLite, but can be built against the system's.
async fn check_sqlite(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    if is_supported(&version) {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        format!(
            "SQLite {version} is too old, {}.{} is needed",
            OLDEST.0, OLDEST.1
        ),
    ))
}

fn is_supported(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlite_without_strict_tables_is_refused() {
        for (version, supported) in [
            ("3.36.0", false),
            ("3.37.0", true),
            ("3.51.3", true),
            ("4.0", true),
            ("", false),
        ] {
            assert_eq!(is_supported(version), supported, "{version}");
        }
    }
}
