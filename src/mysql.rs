//! The stores for MySQL and MariaDB, through sqlx and the application's own [`MySqlPool`](sqlx::MySqlPool).
