//! Which errors of a database tell that a transaction lost against another one.

use sqlx::error::DatabaseError;

use crate::Verdict;

impl Verdict {
    /// The verdict on an answer that is given because of this error of a database:
    /// [`Conflict`](Self::Conflict) if the transaction lost against another one, so that the same request may succeed. `None` for
    /// every other error: the [`ResponsePolicy`](crate::ResponsePolicy) decides.
    ///
    /// | database | a conflict is |
    /// |---|---|
    /// | Postgres | SQLSTATE 40001 (serialization failure) and 40P01 (deadlock) |
    /// | MySQL, MariaDB | error 1213 (deadlock), 1205 (lock wait timeout), and 1020 (the row has changed: MariaDB with `innodb_snapshot_isolation`) |
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
    #[must_use]
    pub fn for_error(error: &sqlx::Error) -> Option<Self> {
        let error = error.as_database_error()?;
        is_conflict(error).then_some(Self::Conflict)
    }
}

fn is_conflict(error: &dyn DatabaseError) -> bool {
    #[cfg(feature = "postgres")]
    if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return ["40001", "40P01"].contains(&error.code());
    }
    // By number: the SQLSTATE of two of them is that of errors without one.
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return [1020, 1205, 1213].contains(&error.number());
    }
    #[cfg(feature = "sqlite")]
    if error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        // The extended code: 5, busy, with 2 in the second byte.
        return error.code().is_some_and(|code| code == "517");
    }
    false
}
