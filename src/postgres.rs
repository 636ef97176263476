//! The stores for Postgres, through sqlx and the application's own [`PgPool`](sqlx::PgPool).
