//! Which errors of a database tell that a transaction lost against another one.

use crate::{Verdict, store};

impl Verdict {
    /// The verdict on an answer that is given because of this error of a database:
    /// [`Conflict`](Self::Conflict) if the transaction lost against another one, so that the same request may succeed. `None` for
    /// every other error: the [`ResponsePolicy`](crate::ResponsePolicy) decides.
    ///
    /// | database | a conflict is |
    /// |---|---|
    /// | Postgres | SQLSTATE 40001 (serialization failure) and 40P01 (deadlock) |
    /// | MySQL, MariaDB | error 1213 (deadlock), 1205 (lock wait timeout), 1020 (the row has changed: MariaDB with `innodb_snapshot_isolation`) and 3101 (rolled back by group replication) |
    /// | SQLite | `SQLITE_BUSY_SNAPSHOT` (a transaction that was begun by a read, and wants to write after another one has written) |
    ///
    /// With feature `axum` it is a response part:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{http::StatusCode, response::{IntoResponse, Response}};
    /// use tower_idempotency::Verdict;
    ///
    /// struct AppError(sqlx::Error);
    ///
    /// impl IntoResponse for AppError {
    ///     fn into_response(self) -> Response {
    ///         let verdict = Verdict::for_error(&self.0);
    ///         (StatusCode::INTERNAL_SERVER_ERROR, verdict, "something went wrong").into_response()
    ///     }
    /// }
    /// # let response = AppError(sqlx::Error::PoolClosed).into_response();
    /// # assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    /// # assert_eq!(response.extensions().get::<Verdict>(), None);
    /// # }
    /// ```
    #[cfg_attr(
        docsrs,
        doc(cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql")))
    )]
    #[must_use]
    pub fn for_error(error: &sqlx::Error) -> Option<Self> {
        is_conflict(error).then_some(Self::Conflict)
    }
}

/// Each backend knows its own errors.
fn is_conflict(error: &sqlx::Error) -> bool {
    let is_one_of = [
        #[cfg(feature = "postgres")]
        store::postgres::is_conflict,
        #[cfg(feature = "mysql")]
        store::mysql::is_conflict,
        #[cfg(feature = "sqlite")]
        store::sqlite::is_conflict,
    ];
    is_one_of.iter().any(|is_conflict| is_conflict(error))
}
