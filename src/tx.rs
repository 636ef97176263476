use std::{
    error::Error,
    fmt,
    ops::{Deref, DerefMut},
};

use http::Extensions;
use sqlx::Database;

use crate::store::sql::{Lent, NotTaken, Slot};

/// The transaction that a transaction store opened for this request.
///
/// What the handler writes through it commits together with the saved response, or not at all. It is the connection itself by
/// [`DerefMut`]: pass `&mut *tx` to sqlx. Nested transactions and savepoints work as usual.
///
/// The store ends it after the handler has answered, so there is no commit. Drop it, or let it go with the handler: a `Tx` that
/// is still alive then, in a spawned task say, makes the answer a 500, and its writes are rolled back when it is dropped at last.
/// A raw `COMMIT` or `ROLLBACK`, or a statement that ends the transaction (`INSERT OR ROLLBACK` on SQLite, DDL on MySQL), is found
/// out when the handler has answered, by a savepoint that has gone: 500, and the key's outcome is unknown from then on. (On MySQL a
/// `ROLLBACK` looks like a deadlock: 503 `not_committed`.) Don't set a savepoint named `tower_idempotency` after such a statement, it
/// would hide it.
///
/// An error of a statement may be swallowed, as far as the database allows that: on SQLite and MySQL the rest commits, but for a
/// deadlock, which undoes everything (503 `not_committed`); on Postgres a failed statement spoils the transaction, unless it was in
/// a nested one: 500, and nothing is persisted.
///
/// ```
/// # #[cfg(all(feature = "axum", feature = "postgres"))] {
/// use axum::{Json, http::StatusCode};
/// use sqlx::Postgres;
/// use tower_idempotency::Tx;
///
/// async fn charge(mut tx: Tx<Postgres>, Json(amount): Json<i64>) -> StatusCode {
///     let insert = sqlx::query("INSERT INTO charges (amount) VALUES ($1)").bind(amount);
///     match insert.execute(&mut *tx).await {
///         Ok(_) => StatusCode::CREATED,
///         Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
///     }
/// }
/// # }
/// ```
pub struct Tx<DB: Database>(Lent<DB>);

impl<DB: Database> Tx<DB> {
    /// Takes the transaction out of a request's extensions, once.
    ///
    /// Later calls fail, even if the first `Tx` was dropped. Clones of the extensions are the same slot, and are harmless.
    ///
    /// # Errors
    ///
    /// If there is no transaction of this database, if it was taken before, or if the request has been answered.
    pub fn take(extensions: &Extensions) -> Result<Self, TxError> {
        let kind = match extensions.get::<Slot<DB>>().map(Slot::lend) {
            Some(Ok(lent)) => return Ok(Self(lent)),
            Some(Err(NotTaken::Already)) => TxErrorKind::Taken,
            Some(Err(NotTaken::Settled)) => TxErrorKind::Settled,
            None => TxErrorKind::Absent,
        };
        Err(TxError(kind))
    }
}

impl<DB: Database> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<DB: Database> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<DB: Database> fmt::Debug for Tx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tx<{}>", DB::NAME)
    }
}

/// Why there is no [`Tx`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxError(TxErrorKind);

impl TxError {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> TxErrorKind {
        self.0
    }
}

impl From<TxErrorKind> for TxError {
    /// For tests of how a handler answers it.
    fn from(kind: TxErrorKind) -> Self {
        Self(kind)
    }
}

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TxErrorKind::Absent => {
                "the request has no transaction of this database: it has no idempotency key, no idempotency layer is around \
                 this route, or the layer's store is a lease store or one for another database"
            }
            TxErrorKind::Taken => "the request's transaction was taken before, it can be taken once",
            TxErrorKind::Settled => "the request has been answered, its transaction has ended",
        })
    }
}

impl Error for TxError {}

/// The kinds of [`TxError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TxErrorKind {
    /// The request has none: no key, no layer, a lease store, or a store for another database.
    Absent,
    /// It was taken before.
    Taken,
    /// The request has been answered.
    Settled,
}
