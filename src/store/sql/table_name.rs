use std::{error::Error, fmt, str::FromStr};

/// The name of a store's table: `table`, or `schema.table`, where MySQL calls a schema a database.
///
/// Each part has 1 to 48 ASCII letters, digits and underscores, and doesn't begin with a digit. Case counts, as names are quoted in
/// every statement. Without a schema, the connection's own search path or database applies.
///
/// ```
/// use tower_idempotency::store::TableName;
///
/// let name: TableName = "payments.idempotency_keys".parse()?;
/// assert!("payments; DROP TABLE charges".parse::<TableName>().is_err());
/// # Ok::<(), tower_idempotency::store::InvalidTableName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<Box<str>>,
    table: Box<str>,
}

impl TableName {
    /// The name that a store has by default.
    pub(crate) fn of(table: &'static str) -> Self {
        Self {
            schema: None,
            table: table.into(),
        }
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// As a statement has it, each part between two of these.
    pub(crate) fn quoted(&self, quote: char) -> String {
        let part = |part: &str| format!("{quote}{part}{quote}");
        match &self.schema {
            Some(schema) => format!("{}.{}", part(schema), part(&self.table)),
            None => part(&self.table),
        }
    }
}

impl FromStr for TableName {
    type Err = InvalidTableName;

    fn from_str(name: &str) -> Result<Self, InvalidTableName> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        if !schema.is_none_or(is_identifier) || !is_identifier(table) {
            return Err(InvalidTableName(()));
        }
        Ok(Self {
            schema: schema.map(Into::into),
            table: table.into(),
        })
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

/// Postgres cuts names after 63 bytes, and the names of indexes are made of the table's.
const LONGEST: usize = 48;

fn is_identifier(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    part.len() <= LONGEST
        && part.bytes().next().is_some_and(is_letter)
        && part
            .bytes()
            .all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

/// The text is no [`TableName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTableName(());

impl fmt::Display for InvalidTableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a table name is `table` or `schema.table`, each of 1 to {LONGEST} ASCII letters, digits and underscores, \
             the first one no digit"
        )
    }
}

impl Error for InvalidTableName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart_once_and_quoted() {
        let name: TableName = "Audit.idempotency_2".parse().unwrap();
        assert_eq!(name.schema.as_deref(), Some("Audit"));
        assert_eq!(name.quoted('"'), r#""Audit"."idempotency_2""#);
        assert_eq!(name.quoted('`'), "`Audit`.`idempotency_2`");
        assert_eq!(name.to_string(), "Audit.idempotency_2");
        let plain: TableName = "_keys".parse().unwrap();
        assert_eq!(plain.quoted('"'), r#""_keys""#);
        assert_eq!(plain, TableName::of("_keys"));
    }

    #[test]
    fn what_could_be_anything_but_a_name_is_refused() {
        let long = "a".repeat(LONGEST + 1);
        for text in [
            "", ".", "a.", ".a", "a.b.c", "a b", "1a", "a\"b", "a`b", "ä", "a-b", "a;b", "a\0",
            &long,
        ] {
            assert_eq!(
                text.parse::<TableName>(),
                Err(InvalidTableName(())),
                "{text}"
            );
        }
        assert!("a".repeat(LONGEST).parse::<TableName>().is_ok());
    }
}
