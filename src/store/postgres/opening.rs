use sqlx::{Row, postgres::PgRow};

use super::{
    error::failed,
    statement::bytes,
    transaction_sql::{claim, idle_limit},
};
use crate::{
    StoreError,
    store::{
        Terms,
        sql::{Columns, Found, State},
    },
};

/// What the first round trip of a reservation told.
pub(super) struct Opening {
    pub(super) found: Found,
    pub(super) lock: Lock,
    pub(super) is_read_committed: bool,
    pub(super) is_read_only: bool,
    /// In milliseconds, the session's own idle limit if that is the shorter one.
    pub(super) own_idle_limit: Option<i32>,
}

/// The key's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Held,
    Busy,
    /// Another had it when the record was read, and has it no more.
    TooLate,
}

impl Opening {
    /// Of the rows of [`open`](super::transaction_sql::TransactionSql::open).
    pub(super) fn read(rows: &[PgRow], terms: &Terms) -> Result<Self, StoreError> {
        let entered = rows.first().ok_or(sqlx::Error::RowNotFound);
        let opening = entered.and_then(|entered| Self::of(true, rows.get(1), entered, terms));
        opening.map_err(failed)?
    }

    /// Of the rows of [`open_isolated`](super::transaction_sql::TransactionSql::open_isolated).
    pub(super) fn read_isolated(rows: &[PgRow], terms: &Terms) -> Result<Self, StoreError> {
        let opening = match rows {
            [lock, record @ .., entered] if record.len() < 2 => lock
                .try_get(0)
                .and_then(|had_lock| Self::of(had_lock, record.first(), entered, terms)),
            _ => Err(sqlx::Error::RowNotFound),
        };
        opening.map_err(failed)?
    }

    fn of(
        had_lock: bool,
        record: Option<&PgRow>,
        entered: &PgRow,
        terms: &Terms,
    ) -> Result<Result<Self, StoreError>, sqlx::Error> {
        let text = |index| entered.try_get::<&str, _>(index);
        let has_lock = text(0)? == claim(terms.nonce(), "true");
        let own_idle_limit = milliseconds(text(1)?).filter(|own| *own < idle_limit(terms));
        let (is_read_committed, is_read_only) = (text(2)? == "read committed", text(3)? == "on");
        let now = entered.try_get(4)?;
        let columns = match record {
            Some(record) => columns(now, record, 0)?,
            None => (now, None, None, None, None, None, None, None, None, None),
        };
        Ok(Found::read(columns).map(|found| Self {
            found,
            lock: match (had_lock, has_lock) {
                (true, true) => Lock::Held,
                (_, false) => Lock::Busy,
                (false, true) => Lock::TooLate,
            },
            is_read_committed,
            is_read_only,
            own_idle_limit,
        }))
    }
}

/// The one row that a record is read with, and the clock.
pub(super) fn found(row: Option<&PgRow>) -> Result<Found, StoreError> {
    let row = row.ok_or(sqlx::Error::RowNotFound);
    let columns = row.and_then(|row| columns(row.try_get(0)?, row, 1));
    Found::read(columns.map_err(failed)?)
}

/// The record from this column on. It has no lease, and is the first attempt always.
fn columns(now: i64, row: &PgRow, first: usize) -> Result<Columns, sqlx::Error> {
    let tag: Option<i32> = row.try_get(first)?;
    let expires: Option<i64> = row.try_get(first + 4)?;
    let response = bytes(row, first + 5)?;
    let state = if response.is_some() {
        State::Completed
    } else {
        State::Abandoned
    };
    Ok((
        now,
        tag.map(i64::from),
        bytes(row, first + 1)?,
        bytes(row, first + 2)?,
        Some(1),
        row.try_get(first + 3)?,
        Some(state as i64),
        expires,
        expires,
        response,
    ))
}

/// A time setting as Postgres writes it: a number, and the largest unit that it is a multiple of. None if there is no limit.
fn milliseconds(setting: &str) -> Option<i32> {
    let digits = setting.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = setting.split_at(digits);
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let milliseconds = number.parse::<i32>().ok()?.checked_mul(factor)?;
    (milliseconds > 0).then_some(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_setting_is_read_with_its_unit() {
        for (setting, expected) in [
            ("0", None),
            ("1500ms", Some(1_500)),
            ("2s", Some(2_000)),
            ("5min", Some(300_000)),
            ("3h", Some(10_800_000)),
            ("1d", Some(86_400_000)),
            ("2147483647ms", Some(i32::MAX)),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(milliseconds(setting), expected, "{setting}");
        }
    }
}
