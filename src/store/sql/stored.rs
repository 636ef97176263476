use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

use super::from_micros;
use crate::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Nonce, Record, RecordState},
};

/// A row as every dialect selects it, in this order: the clock, then the record's columns, which are NULL where there is no row.
pub(crate) struct Columns {
    pub(crate) now: i64,
    pub(crate) tag: Option<i64>,
    pub(crate) fingerprint: Option<Vec<u8>>,
    pub(crate) nonce: Option<Vec<u8>>,
    pub(crate) attempt: Option<i64>,
    pub(crate) fence: Option<i64>,
    pub(crate) state: Option<i64>,
    pub(crate) lease_end: Option<i64>,
    pub(crate) expires: Option<i64>,
    pub(crate) response: Option<Vec<u8>>,
}

impl<'r, R: Row> FromRow<'r, R> for Columns
where
    usize: ColumnIndex<R>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        Ok(Self {
            now: row.try_get(0)?,
            tag: row.try_get(1)?,
            fingerprint: row.try_get(2)?,
            nonce: row.try_get(3)?,
            attempt: row.try_get(4)?,
            fence: row.try_get(5)?,
            state: row.try_get(6)?,
            lease_end: row.try_get(7)?,
            expires: row.try_get(8)?,
            response: row.try_get(9)?,
        })
    }
}

/// What one read found, with the backend's clock of the same moment.
pub(crate) struct Found {
    pub(crate) now: i64,
    /// The row, which may have expired.
    pub(crate) stored: Option<Stored>,
}

/// A record as it stands in its table.
pub(crate) struct Stored {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) nonce: Nonce,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) state: State,
    pub(crate) lease_end: i64,
    pub(crate) expires: i64,
    response: Vec<u8>,
}

/// The states of a record, by the numbers that the tables hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running = 0,
    Completed = 1,
    Abandoned = 2,
}

impl Found {
    pub(crate) fn read(columns: Columns) -> Result<Self, StoreError> {
        let stored = match columns.tag {
            None => None,
            Some(tag) => Some(Stored {
                fingerprint: Fingerprint::new(
                    Tag::from_u16(number(Some(tag))?),
                    bytes(columns.fingerprint)?,
                ),
                nonce: Nonce::from_bytes(bytes(columns.nonce)?),
                attempt: number(columns.attempt)?,
                fence: number(columns.fence)?,
                state: State::read(number(columns.state)?)?,
                lease_end: number(columns.lease_end)?,
                expires: number(columns.expires)?,
                response: columns.response.unwrap_or_default(),
            }),
        };
        let now = columns.now;
        Ok(Self { now, stored })
    }

    /// The record, unless it has expired.
    pub(crate) fn live(&self) -> Option<&Stored> {
        self.stored
            .as_ref()
            .filter(|stored| stored.expires > self.now)
    }

    /// The record as an operator sees it.
    pub(crate) fn record(&self) -> Result<Option<Record>, StoreError> {
        let Some(stored) = self.live() else {
            return Ok(None);
        };
        let state = match stored.state {
            State::Completed => RecordState::Completed(stored.response()?),
            State::Running if stored.lease_end > self.now => RecordState::InFlight {
                lease_left: from_micros(stored.lease_end - self.now),
            },
            State::Running | State::Abandoned => RecordState::Unknown,
        };
        Ok(Some(Record::new(
            stored.fingerprint,
            stored.attempt,
            stored.fence,
            state,
            from_micros(stored.expires - self.now),
        )))
    }
}

impl Stored {
    pub(crate) fn response(&self) -> Result<SavedResponse, StoreError> {
        SavedResponse::decode(self.response.clone())
    }

    /// The claim that this row records.
    pub(crate) fn claim(&self, key: &RecordKey) -> Claim {
        Claim::new(*key, self.fingerprint, self.nonce, self.attempt, self.fence)
    }
}

impl State {
    fn read(number: u8) -> Result<Self, StoreError> {
        match number {
            0 => Ok(Self::Running),
            1 => Ok(Self::Completed),
            2 => Ok(Self::Abandoned),
            _ => Err(corrupt()),
        }
    }
}

fn number<T: TryFrom<i64>>(column: Option<i64>) -> Result<T, StoreError> {
    column
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(corrupt)
}

fn bytes<const N: usize>(column: Option<Vec<u8>>) -> Result<[u8; N], StoreError> {
    column
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(corrupt)
}

pub(crate) fn corrupt() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "a row of the record table can't be read",
    )
}
