use sqlx::{Connection, Executor, FromRow, IntoArguments, Sqlite};
use tempfile::TempDir;

use crate::servers;

/// The app's database, empty at first.
pub struct Database(Kind);

enum Kind {
    /// A file that ends with the test.
    Sqlite(TempDir),
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "mysql")]
    MySql(String),
}

/// A row of the app's table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Charge {
    pub key: String,
    pub id: String,
    pub account: String,
    pub amount: i64,
}

impl Database {
    pub fn sqlite() -> Self {
        Self(Kind::Sqlite(tempfile::tempdir().expect("a directory")))
    }

    /// One of the shared server's. None if there is no Postgres here.
    #[cfg(feature = "postgres")]
    pub async fn postgres() -> Option<Self> {
        Some(Self::of_postgres(servers::postgres()?).await)
    }

    #[cfg(feature = "postgres")]
    pub async fn of_postgres(server: &servers::Postgres) -> Self {
        Self(Kind::Postgres(server.database().await))
    }

    /// One of the shared server's. None if there is no MariaDB here.
    #[cfg(feature = "mysql")]
    pub async fn mariadb() -> Option<Self> {
        Some(Self::of_mariadb(servers::mariadb()?).await)
    }

    #[cfg(feature = "mysql")]
    pub async fn of_mariadb(server: &servers::MariaDb) -> Self {
        Self(Kind::MySql(server.database().await))
    }

    pub fn url(&self) -> String {
        match &self.0 {
            Kind::Sqlite(directory) => {
                format!("sqlite://{}/payments.db", directory.path().display())
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres(url) => url.clone(),
            #[cfg(feature = "mysql")]
            Kind::MySql(url) => url.clone(),
        }
    }

    /// All charges, read through a connection of the test's own.
    pub async fn charges(&self) -> Vec<Charge> {
        let sql = "SELECT idempotency_key, id, account, amount FROM charges";
        let rows = match &self.0 {
            Kind::Sqlite(_) => rows::<Sqlite, _>(&self.url(), sql).await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(url) => rows::<sqlx::Postgres, _>(url, sql).await,
            #[cfg(feature = "mysql")]
            Kind::MySql(url) => rows::<sqlx::MySql, _>(url, sql).await,
        };
        let rows = rows.into_iter();
        rows.map(|(key, id, account, amount)| Charge {
            key,
            id,
            account,
            amount,
        })
        .collect()
    }

    pub async fn charges_under(&self, key: &str) -> usize {
        let charges = self.charges().await;
        charges.iter().filter(|charge| charge.key == key).count()
    }

    /// What `SELECT count(*)` says, through a connection of the test's own.
    pub async fn count(&self, sql: &'static str) -> usize {
        let rows: Vec<(i64,)> = match &self.0 {
            Kind::Sqlite(_) => rows::<Sqlite, _>(&self.url(), sql).await,
            #[cfg(feature = "postgres")]
            Kind::Postgres(url) => rows::<sqlx::Postgres, _>(url, sql).await,
            #[cfg(feature = "mysql")]
            Kind::MySql(url) => rows::<sqlx::MySql, _>(url, sql).await,
        };
        let (count,) = rows.into_iter().next().expect("a row");
        usize::try_from(count).expect("a count")
    }
}

async fn rows<DB, R>(url: &str, sql: &'static str) -> Vec<R>
where
    DB: sqlx::Database<Arguments: IntoArguments<DB>>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    R: for<'r> FromRow<'r, DB::Row> + Send + Unpin,
{
    let connection = DB::Connection::connect(url).await;
    let mut connection = connection.expect("a connection");
    let rows = sqlx::query_as(sql).fetch_all(&mut connection).await;
    connection.close().await.expect("a closed connection");
    rows.expect("rows")
}
