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

/// How a reservation finds the key.
pub(super) struct Opening {
    pub(super) found: Found,
    pub(super) lock: Lock,
    pub(super) is_read_committed: bool,
    pub(super) is_read_only: bool,
    /// In milliseconds, the session's own idle limit if that is the shorter one.
    pub(super) own_limit: Option<i32>,
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
    /// Of the one row that was read in the transaction.
    pub(super) fn of(rows: &[PgRow], terms: &Terms) -> Result<Self, StoreError> {
        let row = rows.first().ok_or_else(no_row)?;
        let text = |index| text(row, index);
        Ok(Self {
            found: found(Some(row))?,
            lock: if text(7)? == Some(&claim(terms.nonce())) {
                Lock::Held
            } else {
                Lock::Busy
            },
            is_read_committed: text(8)? == Some("read committed"),
            is_read_only: text(9)? == Some("on"),
            own_limit: own_limit(text(10)?, terms),
        })
    }

    /// Of the rows of [`look_and_enter`](super::transaction_sql::TransactionSql::look_and_enter).
    pub(super) fn of_two(rows: &[PgRow], terms: &Terms) -> Result<Self, StoreError> {
        let [_, looked, entered] = rows else {
            return Err(no_row());
        };
        let mut opening = Self::of(std::slice::from_ref(looked), terms)?;
        let has_lock = text(entered, 0)? == Some(&claim(terms.nonce()));
        opening.lock = match (opening.lock, has_lock) {
            (_, false) => Lock::Busy,
            (Lock::Held, true) => Lock::Held,
            (Lock::Busy | Lock::TooLate, true) => Lock::TooLate,
        };
        opening.own_limit = own_limit(text(entered, 1)?, terms);
        Ok(opening)
    }
}

/// The record of the one row that it was read with, and the clock. It has no lease, and is the first attempt always.
pub(super) fn found(row: Option<&PgRow>) -> Result<Found, StoreError> {
    let row = row.ok_or_else(no_row)?;
    let columns = || -> Result<Columns, sqlx::Error> {
        let tag: Option<i32> = row.try_get(1)?;
        let (expires, response) = (row.try_get(5)?, bytes(row, 6)?);
        let state = match response {
            Some(_) => State::Completed,
            None => State::Abandoned,
        };
        Ok(Columns {
            now: row.try_get(0)?,
            tag: tag.map(i64::from),
            fingerprint: bytes(row, 2)?,
            nonce: bytes(row, 3)?,
            attempt: Some(1),
            fence: row.try_get(4)?,
            state: Some(state as i64),
            lease_end: expires,
            expires,
            response,
        })
    };
    Found::read(columns().map_err(failed)?)
}

fn text(row: &PgRow, index: usize) -> Result<Option<&str>, StoreError> {
    row.try_get(index).map_err(failed)
}

fn no_row() -> StoreError {
    failed(sqlx::Error::RowNotFound)
}

fn own_limit(setting: Option<&str>, terms: &Terms) -> Option<i32> {
    milliseconds(setting?).filter(|own| *own < idle_limit(terms))
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
