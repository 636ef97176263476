use std::{fmt::Write, sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, Postgres, Row, SqlSafeStr, SqlStr, ValueRef,
    postgres::{PgArguments, PgRow, PgValueFormat},
    query::Query,
};

use super::bytea::bytea;
use crate::{
    Fingerprint, RecordKey,
    store::{
        Claim, Nonce, TableName,
        sql::{hex, to_micros},
    },
};

/// The database's clock in microseconds since 1970. Not `now()`, which stands still within a transaction.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Whether a statement's transaction is its own: then it is committed when the server has answered. A bound statement has begun it when
/// its portal was made, and a text when it came. In a transaction that was begun by an earlier message, both are later.
///
/// The one way to be wrong is to say no: where a pooler prepares the statement in the same breath, that has begun it. What is done
/// twice then is as if done once.
const OWN: &str = "(transaction_timestamp() = coalesce((SELECT creation_time FROM pg_cursors WHERE name = ''), statement_timestamp()))";

/// A statement of one store, with its table's name in it.
#[derive(Clone, Debug)]
pub(super) struct Statement(SqlStr);

/// What stands for `$1`, `$2`, … in a statement.
#[derive(Clone, Copy)]
pub(super) enum Argument<'a> {
    Bytes(Option<&'a [u8]>),
    Number(Option<i64>),
    /// A response or a note: what statements with their arguments in the text can't have, since texts get into logs.
    Response(Option<&'a [u8]>),
}

impl Statement {
    /// Puts `{table}`, `{now}` and `{own}` into the template.
    pub(super) fn new(template: &str, table: &TableName) -> Self {
        let text = template
            .replace("{table}", &table.quoted('"'))
            .replace("{now}", NOW)
            .replace("{own}", OWN);
        Self(AssertSqlSafe(Arc::<str>::from(text)).into_sql_str())
    }

    /// One that names no table.
    pub(super) fn fixed(text: &'static str) -> Self {
        Self(text.into_sql_str())
    }

    /// To be prepared once per connection.
    pub(super) fn prepared<'a>(
        &self,
        arguments: &[Argument<'a>],
    ) -> Query<'a, Postgres, PgArguments> {
        let query = sqlx::query(self.0.clone());
        arguments
            .iter()
            .fold(query, |query, argument| match *argument {
                Argument::Bytes(bytes) | Argument::Response(bytes) => query.bind(bytes),
                Argument::Number(number) => query.bind(number),
            })
    }

    /// To be prepared anew each time, without a name on the server.
    pub(super) fn unnamed<'a>(
        &self,
        arguments: &[Argument<'a>],
    ) -> Query<'a, Postgres, PgArguments> {
        self.prepared(arguments).persistent(false)
    }

    /// With its arguments in the text, where they are nothing but numbers and hexadecimal digits. None if one is a response.
    pub(super) fn spelled(&self, arguments: &[Argument<'_>]) -> Option<String> {
        let mut parts = self.0.as_str().split('$');
        let mut text = parts.next()?.to_owned();
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            let index = number.parse::<usize>().ok()?.checked_sub(1)?;
            arguments.get(index)?.spell(&mut text)?;
            text.push_str(rest);
        }
        Some(text)
    }

    #[cfg(test)]
    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Argument<'_> {
    fn spell(self, text: &mut String) -> Option<()> {
        match self {
            Self::Bytes(Some(bytes)) => {
                // No `'\x…'`, which means something else with `standard_conforming_strings` off.
                text.push_str("decode('");
                hex::encode(bytes, text);
                text.push_str("', 'hex')");
            }
            // In parentheses: a sign behind an operator would make another one.
            Self::Number(Some(number)) => write!(text, "({number})").ok()?,
            Self::Bytes(None) | Self::Number(None) | Self::Response(None) => text.push_str("NULL"),
            Self::Response(Some(_)) => return None,
        }
        Some(())
    }
}

impl<'a> Argument<'a> {
    pub(super) fn nonce(nonce: &'a Nonce) -> Self {
        Self::Bytes(Some(nonce.as_bytes()))
    }

    pub(super) fn tag(fingerprint: &Fingerprint) -> Self {
        Self::Number(Some(fingerprint.tag().to_u16().into()))
    }

    pub(super) fn digest(fingerprint: &'a Fingerprint) -> Self {
        Self::Bytes(Some(fingerprint.digest()))
    }

    pub(super) fn fence(claim: &Claim) -> Self {
        Self::Number(Some(i64::try_from(claim.fence()).unwrap_or(i64::MAX)))
    }

    /// A claim's record in a transaction store, without a response if its outcome is unknown.
    pub(super) fn of_record(
        claim: &'a Claim,
        nonce: &'a Nonce,
        response: Option<&'a [u8]>,
        retention: Duration,
    ) -> [Self; 7] {
        [
            claim.key().into(),
            Self::tag(claim.fingerprint()),
            Self::digest(claim.fingerprint()),
            Self::nonce(nonce),
            Self::fence(claim),
            retention.into(),
            Self::Response(response),
        ]
    }
}

impl From<Duration> for Argument<'_> {
    fn from(duration: Duration) -> Self {
        Self::Number(Some(to_micros(duration)))
    }
}

impl<'a> From<&'a RecordKey> for Argument<'a> {
    fn from(key: &'a RecordKey) -> Self {
        Self::Bytes(Some(key.as_bytes()))
    }
}

impl From<i64> for Argument<'_> {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

/// A column of bytes, in whichever format the server sent it: sqlx reads them as text only if `bytea_output` is `hex`.
pub(super) fn bytes(row: &PgRow, index: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
    let value = row.try_get_raw(index)?;
    if value.is_null() {
        return Ok(None);
    }
    let raw = value.as_bytes().map_err(sqlx::Error::Decode)?;
    match value.format() {
        PgValueFormat::Binary => Ok(Some(raw.to_vec())),
        PgValueFormat::Text => bytea(raw)
            .map(Some)
            .ok_or_else(|| sqlx::Error::Decode("neither form of a bytea".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_never_put_into_a_text() {
        let statement = Statement::fixed("SELECT $2, $1::bigint");
        let spell = |second| statement.spelled(&[Argument::Number(Some(-1)), second]);
        assert_eq!(
            spell(Argument::Bytes(Some(&[0, 0xff]))).as_deref(),
            Some("SELECT decode('00ff', 'hex'), (-1)::bigint")
        );
        for nothing in [
            Argument::Bytes(None),
            Argument::Number(None),
            Argument::Response(None),
        ] {
            assert_eq!(spell(nothing).as_deref(), Some("SELECT NULL, (-1)::bigint"));
        }
        assert_eq!(spell(Argument::Response(Some(b"secret"))), None);
        assert_eq!(statement.spelled(&[]), None);
    }
}
