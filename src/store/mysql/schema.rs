use sqlx::{FromRow, mysql::MySqlRow};

use super::{database::Database, error::failed, statement::filled};
use crate::{StoreError, StoreErrorKind, store::TableName};

/// A table of ours.
pub(super) struct Schema {
    /// Its name, unless another one is configured.
    pub(super) table: &'static str,
    kind: &'static str,
    /// The shipped file that makes it.
    script: &'static str,
    columns: &'static [(&'static str, &'static str)],
    /// What the store does to the table, besides reading it. An EXPLAIN needs the privileges of what it explains.
    writes: &'static [&'static str],
    /// Whether it is left to the session to commit some statements.
    needs_autocommit: bool,
}

pub(super) const LEASES: Schema = Schema {
    table: "tower_idempotency_leases",
    kind: "leases",
    script: include_str!("lease.sql"),
    columns: &[
        ("record_key", "binary(32)"),
        ("fingerprint_tag", "int"),
        ("fingerprint", "binary(32)"),
        ("nonce", "binary(16)"),
        ("attempt", "bigint"),
        ("fence", "bigint"),
        ("state", "tinyint"),
        ("lease_end", "bigint"),
        ("expires", "bigint"),
        ("response", "longblob"),
        ("steps", "longblob"),
    ],
    writes: &[INSERT, UPDATE],
    needs_autocommit: false,
};

pub(super) const TRANSACTIONS: Schema = Schema {
    table: "tower_idempotency_transactions",
    kind: "transactions",
    script: include_str!("transaction.sql"),
    columns: &[
        ("record_key", "binary(32)"),
        ("fingerprint_tag", "int"),
        ("fingerprint", "binary(32)"),
        ("nonce", "binary(16)"),
        ("fence", "bigint"),
        ("expires", "bigint"),
        ("response", "longblob"),
    ],
    writes: &[INSERT, UPDATE, DELETE],
    needs_autocommit: true,
};

const INSERT: &str = "EXPLAIN INSERT INTO {table} (record_key) VALUES (x'')";
const UPDATE: &str = "EXPLAIN UPDATE {table} SET fence = fence WHERE record_key = x''";
const DELETE: &str = "EXPLAIN DELETE FROM {table} WHERE record_key = x''";

/// What a record has none of as long as there is none.
const NULLABLE: [&str; 2] = ["response", "steps"];

/// The version of the tables that this release makes and knows.
const VERSION: u32 = 1;

impl Schema {
    /// Makes the table if it isn't there, in one statement, and checks it.
    pub(super) async fn migrate(
        &self,
        database: &Database,
        name: &TableName,
    ) -> Result<(), StoreError> {
        // Who may not create tables may still start where one is.
        if Table::read(database, name).await?.is_none() {
            let script = self.script.replace(self.table, &name.quoted('`'));
            database.execute_script(&script).await?;
        }
        self.check(database, name).await
    }

    /// Compares the table with what this release makes.
    pub(super) async fn check(
        &self,
        database: &Database,
        name: &TableName,
    ) -> Result<(), StoreError> {
        let Some(table) = Table::read(database, name).await? else {
            return Err(self.refuse(name, "is missing"));
        };
        self.check_version(&table, name)?;
        for write in self.writes {
            database.may(&filled(write, name)).await?;
        }
        let problems = self.problems(&table);
        if problems.is_empty() {
            return Ok(());
        }
        Err(self.refuse(
            name,
            &format!("isn't as it should be: {}", problems.join("; ")),
        ))
    }

    fn check_version(&self, table: &Table, name: &TableName) -> Result<(), StoreError> {
        let prefix = format!("tower-idempotency {}, schema version ", self.kind);
        let version = table.comment.strip_prefix(&prefix);
        match version.map(str::parse::<u32>) {
            Some(Ok(VERSION)) => Ok(()),
            Some(Ok(version)) if version > VERSION => Err(self.refuse(
                name,
                &format!("has schema version {version}, and this release knows version {VERSION} only: it was made by a later one"),
            )),
            Some(Ok(_)) | Some(Err(_)) | None => Err(self.refuse(
                name,
                &format!("has the comment '{}', and not '{prefix}{VERSION}'", table.comment),
            )),
        }
    }

    fn problems(&self, table: &Table) -> Vec<String> {
        let mut problems = Vec::new();
        if !table.engine.eq_ignore_ascii_case("InnoDB") {
            problems.push(format!("its engine is {}, and not InnoDB", table.engine));
        }
        if self.needs_autocommit && !table.autocommits {
            problems.push("the pool's sessions don't autocommit".to_owned());
        }
        if !table.ends_plainly {
            problems
                .push("the pool's sessions have another completion_type than NO_CHAIN".to_owned());
        }
        for (name, kind) in self.columns {
            match table.columns.iter().find(|column| column.name == *name) {
                None => problems.push(format!("column {name} is missing")),
                Some(column) if column.kind != *kind => {
                    problems.push(format!("column {name} is {}, and not {kind}", column.kind));
                }
                Some(column) if column.is_nullable != NULLABLE.contains(name) => {
                    let null = if column.is_nullable {
                        "NULL"
                    } else {
                        "NOT NULL"
                    };
                    problems.push(format!("column {name} is {null}"));
                }
                Some(_) => {}
            }
        }
        for column in &table.columns {
            let is_ours = self.columns.iter().any(|(name, _)| column.name == *name);
            if !is_ours && column.is_required {
                problems.push(format!("column {} has no default", column.name));
            }
            // The server then tells this number where the store expects its own.
            if column.is_counted {
                problems.push(format!("column {} is AUTO_INCREMENT", column.name));
            }
        }
        problems.extend(index_problems(&table.indexes));
        problems
    }

    fn refuse(&self, name: &TableName, how: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Other,
            format!(
                "the table `{name}` {how}. Run the store's `migrate()` where there is no table, and see \
                 `src/store/mysql/{}.sql` for what is needed",
                self.kind.trim_end_matches('s')
            ),
        )
    }
}

fn index_problems(indexes: &[Part]) -> Vec<String> {
    let mut problems = Vec::new();
    let primary: Vec<&Part> = indexes
        .iter()
        .filter(|part| part.index == "PRIMARY")
        .collect();
    if !matches!(*primary, [key] if key.column == "record_key" && key.is_whole) {
        problems.push("the primary key isn't (record_key)".to_owned());
    }
    if !indexes
        .iter()
        .any(|part| part.number == 1 && part.column == "expires")
    {
        problems.push("an index on expires is missing".to_owned());
    }
    for part in indexes {
        if part.is_unique && part.number == 1 && part.index != "PRIMARY" {
            problems.push(format!("index {} is unique", part.index));
        }
    }
    problems
}

/// A table as the server describes it.
struct Table {
    comment: String,
    engine: String,
    autocommits: bool,
    /// A `COMMIT` is one, and begins or ends nothing else.
    ends_plainly: bool,
    columns: Vec<Column>,
    indexes: Vec<Part>,
}

struct Column {
    name: String,
    /// Without the display width of numbers, which MySQL doesn't have any more.
    kind: String,
    is_nullable: bool,
    is_required: bool,
    is_counted: bool,
}

/// A column of an index.
struct Part {
    index: String,
    number: i64,
    column: String,
    is_unique: bool,
    is_whole: bool,
}

/// MySQL gives these texts in types that differ from version to version.
const TABLE: &str = "
SELECT CAST(table_comment AS CHAR), CAST(COALESCE(engine, table_type) AS CHAR), @@SESSION.autocommit + 0,
    @@SESSION.completion_type = 'NO_CHAIN'
FROM information_schema.tables WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?
ORDER BY CAST(table_name AS BINARY) = ? DESC LIMIT 1";
const COLUMNS: &str = "
SELECT CAST(column_name AS CHAR), CAST(column_type AS CHAR), is_nullable = 'YES',
    is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%',
    extra LIKE '%auto_increment%'
FROM information_schema.columns WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
const INDEXES: &str = "
SELECT CAST(index_name AS CHAR), CAST(seq_in_index AS SIGNED), CAST(COALESCE(column_name, '') AS CHAR), non_unique = 0,
    sub_part IS NULL
FROM information_schema.statistics WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";

impl Table {
    async fn read(database: &Database, name: &TableName) -> Result<Option<Self>, StoreError> {
        let ask = |statement: &'static str| {
            move || {
                sqlx::query(statement)
                    .bind(name.schema())
                    .bind(name.table())
            }
        };
        let tables = database.fetch(|| ask(TABLE)().bind(name.table())).await?;
        let Some(table) = tables.first() else {
            return Ok(None);
        };
        let (comment, engine, autocommits, ends_plainly) =
            FromRow::from_row(table).map_err(failed)?;
        let columns = database.fetch(ask(COLUMNS)).await?;
        let indexes = database.fetch(ask(INDEXES)).await?;
        Ok(Some(Self {
            comment,
            engine,
            autocommits,
            ends_plainly,
            columns: columns
                .iter()
                .map(Column::read)
                .collect::<Result<_, _>>()
                .map_err(failed)?,
            indexes: indexes
                .iter()
                .map(Part::read)
                .collect::<Result<_, _>>()
                .map_err(failed)?,
        }))
    }
}

impl Column {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let (name, kind, is_nullable, is_required, is_counted): (String, String, bool, bool, bool) =
            FromRow::from_row(row)?;
        Ok(Self {
            name: name.to_ascii_lowercase(),
            kind: without_width(&kind.to_ascii_lowercase()),
            is_nullable,
            is_required,
            is_counted,
        })
    }
}

impl Part {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let (index, number, column, is_unique, is_whole): (String, i64, String, bool, bool) =
            FromRow::from_row(row)?;
        Ok(Self {
            index,
            number,
            column: column.to_ascii_lowercase(),
            is_unique,
            is_whole,
        })
    }
}

fn without_width(kind: &str) -> String {
    match kind.split_once('(') {
        Some((number, rest)) if number.ends_with("int") => {
            let (_, attributes) = rest.split_once(')').unwrap_or_default();
            format!("{number}{attributes}")
        }
        _ => kind.to_owned(),
    }
}
