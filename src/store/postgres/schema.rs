use sqlx::{Postgres, Row, postgres::PgRow};

use super::{
    database::{Database, script},
    error::failed,
    statement::Statement,
};
use crate::{
    StoreError, StoreErrorKind,
    store::{
        TableName,
        sql::{Guarded, Kept, transactions::end_uncounted},
    },
};

/// A table of ours.
pub(super) struct Schema {
    pub(super) kind: &'static str,
    pub(super) default_table: &'static str,
    /// The shipped file, and what it is called.
    pub(super) script: &'static str,
    pub(super) file: &'static str,
    /// Name, type, and whether it is NOT NULL.
    pub(super) columns: &'static [(&'static str, &'static str, bool)],
}

/// The version of the tables that this release makes and knows.
const VERSION: u32 = 1;

impl Schema {
    /// Makes the table if it isn't there, and checks it.
    pub(super) async fn migrate(
        &self,
        database: &Database,
        table: &TableName,
    ) -> Result<(), StoreError> {
        // Without a lock first: a server that starts changes nothing, and waits for nobody.
        if summary(database, table).await?.is_none() {
            let connection = database.acquire().await.map_err(failed)?;
            let mut transaction = Guarded::<Postgres>::new(connection, Kept::default());
            let made = match transaction.connection() {
                Some(connection) => self.make(connection, table).await,
                None => Err(StoreErrorKind::Other.into()),
            };
            match made {
                Ok(()) => transaction.pool(),
                Err(error) => {
                    end_uncounted(transaction).await;
                    return Err(error);
                }
            }
        }
        self.check(database, table).await
    }

    /// In one transaction, one process after the other: `IF NOT EXISTS` alone fails if two do it at once. What a stranger has left
    /// open on the connection ends before it.
    async fn make(
        &self,
        connection: &mut sqlx::PgConnection,
        table: &TableName,
    ) -> Result<(), StoreError> {
        let begin = format!(
            "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({MIGRATION}); \
             SELECT to_regclass('{}') IS NULL",
            table.quoted('"')
        );
        let rows = script(connection, begin).await?;
        let is_missing = match rows.get(1) {
            Some(row) => row.try_get(0).map_err(failed)?,
            None => false,
        };
        if is_missing {
            script(connection, self.script_for(table)).await?;
        }
        script(connection, "COMMIT".to_owned()).await.map(drop)
    }

    /// The shipped file, for the configured table.
    fn script_for(&self, table: &TableName) -> String {
        let (default_index, index) = (
            format!("{}_expires", self.default_table),
            format!("{}_expires", table.table()),
        );
        // The index first, whose name begins with the table's; and for now without what would be replaced again.
        let script = self.script.replace(&default_index, "{index}");
        let script = script.replace(self.default_table, &table.quoted('"'));
        script.replace("{index}", &format!("\"{index}\""))
    }

    /// Tells what is wrong with the table.
    pub(super) async fn check(
        &self,
        database: &Database,
        table: &TableName,
    ) -> Result<(), StoreError> {
        let Some(summary) = summary(database, table).await? else {
            return Err(self.wrong(table, "is missing".to_owned()));
        };
        let comment: Option<String> = summary.try_get(0).map_err(failed)?;
        self.check_version(table, comment)?;
        let columns = Statement::new(COLUMNS, table);
        let columns = database.run(&columns, &[]).await?;
        let mut problems = self.column_problems(&columns).map_err(failed)?;
        for (index, problem) in PROBLEMS.iter().enumerate() {
            if !summary.try_get::<bool, _>(index + 2).map_err(failed)? {
                problems.push((*problem).to_owned());
            }
        }
        let missing: String = summary.try_get(1).map_err(failed)?;
        if !missing.is_empty() {
            problems.push(format!("doesn't allow this user to {missing}"));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(self.wrong(table, problems.join(", ")))
    }

    fn check_version(&self, table: &TableName, comment: Option<String>) -> Result<(), StoreError> {
        let prefix = format!("tower-idempotency {}, schema version ", self.kind);
        let version = comment
            .as_deref()
            .and_then(|comment| comment.strip_prefix(&prefix))
            .and_then(|version| version.parse::<u32>().ok());
        match version {
            Some(VERSION) => Ok(()),
            Some(later) if later > VERSION => Err(self.wrong(
                table,
                format!("has schema version {later} of a later release, this one knows version {VERSION}"),
            )),
            Some(older) => Err(self.wrong(
                table,
                format!("has schema version {older}, this release needs version {VERSION}"),
            )),
            None => Err(self.wrong(
                table,
                format!("is not marked as one of ours by the comment `{prefix}{VERSION}`"),
            )),
        }
    }

    fn column_problems(&self, rows: &[PgRow]) -> Result<Vec<String>, sqlx::Error> {
        let mut problems = Vec::new();
        let mut expected = self.columns.to_vec();
        for row in rows {
            let (name, of_type): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let (is_not_null, is_filled): (bool, bool) = (row.try_get(2)?, row.try_get(3)?);
            match expected.iter().position(|(expected, ..)| *expected == name) {
                Some(index) => {
                    let (_, right_type, needs_value) = expected.swap_remove(index);
                    if of_type != right_type {
                        problems.push(format!("has `{name}` as {of_type} instead of {right_type}"));
                    }
                    if is_not_null && !needs_value {
                        problems.push(format!("has `{name}` as NOT NULL"));
                    }
                }
                None if is_not_null && !is_filled => {
                    problems.push(format!("has `{name}` as NOT NULL without a default"));
                }
                None => {}
            }
        }
        problems.extend(
            expected
                .iter()
                .map(|(name, ..)| format!("lacks the column `{name}`")),
        );
        Ok(problems)
    }

    fn wrong(&self, table: &TableName, problem: String) -> StoreError {
        StoreError::new(
            StoreErrorKind::Other,
            format!(
                "the table `{table}` {problem}: `migrate()` makes it where there is none, as does {}",
                self.file
            ),
        )
    }
}

/// The one row about the table; none if there is no table.
async fn summary(database: &Database, table: &TableName) -> Result<Option<PgRow>, StoreError> {
    let summary = Statement::new(SUMMARY, table);
    let rows = database.run(&summary, &[]).await?;
    Ok(rows.into_iter().next())
}

/// Comment, missing privileges, and what [`PROBLEMS`] are the lack of.
const SUMMARY: &str = "
SELECT obj_description(oid, 'pg_class'),
    array_to_string(ARRAY(
        SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS privilege
        WHERE NOT has_table_privilege(oid, privilege)), ', '),
    relkind = 'r' AND relpersistence = 'p',
    EXISTS (SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE indrelid = pg_class.oid AND attname = 'record_key' AND indnkeyatts = 1 AND indpred IS NULL
            AND indisunique AND indimmediate AND indisvalid),
    EXISTS (SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE indrelid = pg_class.oid AND attname = 'expires' AND indpred IS NULL AND indisvalid),
    NOT EXISTS (SELECT FROM pg_index LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey) AND attname = 'record_key'
        WHERE indrelid = pg_class.oid AND (indisunique OR indisexclusion) AND attname IS NULL),
    NOT row_security_active(oid) OR (
        NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND NOT polpermissive)
        AND EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND polpermissive AND polcmd = '*'
            AND pg_get_expr(polqual, polrelid) = 'true' AND coalesce(pg_get_expr(polwithcheck, polrelid), 'true') = 'true'
            AND EXISTS (SELECT FROM unnest(polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE'))))
FROM pg_class WHERE oid = to_regclass('{table}')";
const PROBLEMS: [&str; 5] = [
    "is no plain table that survives a crash",
    "lacks a unique index on `record_key` alone",
    "lacks an index on `expires`",
    "has a unique index without `record_key`",
    "has row-level security, which may hide rows from this user: a policy `FOR ALL USING (true)` would not",
];

/// Name, type, whether it is NOT NULL, and whether it is filled by itself.
const COLUMNS: &str = "
SELECT attname::text, format_type(atttypid, NULL), attnotnull, atthasdef OR attidentity <> ''
FROM pg_attribute WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum";

/// The lock that those who migrate take, one after the other: a number that nobody else is likely to use.
const MIGRATION: i64 = i64::from_be_bytes(*b"idemmigr");
