//! MySQL through sqlx and the user's own pool.
