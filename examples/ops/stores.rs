//! From a URL to a store.

use std::{sync::Arc, time::Duration};

use sqlx::{Connection, Database, Pool, Sqlite, pool::PoolOptions};
use tokio::time::timeout;
#[cfg(feature = "mysql")]
use tower_idempotency::mysql;
#[cfg(feature = "postgres")]
use tower_idempotency::postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tower_idempotency::store::TableName;
use tower_idempotency::{
    sqlite,
    store::{ListRecords, Store},
};

use crate::{arguments::Arguments, failure::Failure};

/// A store, and its records without their keys, where it can list them.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) records: Option<Arc<dyn ListRecords>>,
}

impl Opened {
    pub(crate) fn listing<S: ListRecords>(store: S) -> Self {
        let records = Arc::new(store);
        Self {
            store: Arc::<S>::clone(&records),
            records: Some(records),
        }
    }
}

/// The store of this URL, after a look at its table.
pub(crate) async fn open(arguments: &Arguments) -> Result<Opened, Failure> {
    let url = match arguments.store_url.as_str() {
        "-" => std::env::var("STORE_URL")
            .map_err(|_missing| Failure::usage("`-` needs STORE_URL in the environment"))?,
        url => url.to_owned(),
    };
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    #[cfg(feature = "redis")]
    if let Some("redis" | "rediss" | "redis-cluster" | "rediss-cluster") = scheme {
        return crate::redis::open(&url, arguments).await;
    }
    if arguments.prefix.is_some() || arguments.allow_eviction {
        return Err(Failure::usage(
            "--prefix and --allow-eviction are for Redis",
        ));
    }
    match scheme {
        Some("sqlite") => of_sqlite(&url, arguments).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => of_postgres(&url, arguments).await,
        #[cfg(feature = "mysql")]
        Some("mysql" | "mariadb") => of_mysql(&url, arguments).await,
        Some(_) | None => Err(Failure::usage(
            "no store has such a URL, or this was built without its feature: sqlite, postgres, mysql, redis",
        )),
    }
}

async fn of_sqlite(url: &str, arguments: &Arguments) -> Result<Opened, Failure> {
    if arguments.table.is_some() {
        return Err(Failure::usage("on SQLite the table has a fixed name"));
    }
    let pool = pool_of::<Sqlite>(url).await?;
    Ok(if arguments.transaction {
        let store = sqlite::TransactionStore::new(pool);
        store.check().await?;
        Opened::listing(store)
    } else {
        let store = sqlite::LeaseStore::new(pool);
        store.check().await.map_err(Failure::no_leases)?;
        Opened::listing(store)
    })
}

/// The same for two databases whose stores have the same names.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! of_server {
    ($open:ident, $module:ident, $database:ty) => {
        async fn $open(url: &str, arguments: &Arguments) -> Result<Opened, Failure> {
            let table = table_of(arguments)?;
            let pool = pool_of::<$database>(url).await?;
            Ok(if arguments.transaction {
                let mut store = $module::TransactionStore::new(pool);
                if let Some(table) = table {
                    store = store.with_table(table);
                }
                store.check().await?;
                Opened::listing(store)
            } else {
                let mut store = $module::LeaseStore::new(pool);
                if let Some(table) = table {
                    store = store.with_table(table);
                }
                store.check().await.map_err(Failure::no_leases)?;
                Opened::listing(store)
            })
        }
    };
}
#[cfg(feature = "postgres")]
of_server!(of_postgres, postgres, sqlx::Postgres);
#[cfg(feature = "mysql")]
of_server!(of_mysql, mysql, sqlx::MySql);

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn table_of(arguments: &Arguments) -> Result<Option<TableName>, Failure> {
    let table = arguments.table.as_deref().map(str::parse).transpose();
    table.map_err(|invalid: tower_idempotency::store::InvalidTableName| {
        Failure::usage(invalid.to_string())
    })
}

/// A pool, after a connection that tells at once what is wrong: the pool would try again until its limit.
async fn pool_of<DB: Database>(url: &str) -> Result<Pool<DB>, Failure> {
    let connecting = timeout(LIMIT, DB::Connection::connect(url));
    let connection = connecting
        .await
        .map_err(|_elapsed| Failure::silent(LIMIT))??;
    connection.close().await?;
    let pool = PoolOptions::new().max_connections(1).acquire_timeout(LIMIT);
    Ok(pool.connect(url).await?)
}

pub(crate) const LIMIT: Duration = Duration::from_secs(10);
