use std::{env, sync::Arc};

use tower_idempotency::store::Store;

use crate::BoxError;

/// The store that `STORE_URL` names. None if it is unset: the keys are then kept next to the charges.
pub(crate) async fn from_env() -> Result<Option<Arc<dyn Store>>, BoxError> {
    let Ok(url) = env::var("STORE_URL") else {
        return Ok(None);
    };
    match url.split(':').next() {
        #[cfg(feature = "memory")]
        Some("memory") => Ok(Some(Arc::new(tower_idempotency::MemoryStore::new()))),
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => {
            let store = tower_idempotency::RedisStore::new(redis::Client::open(url)?);
            store.check().await?;
            Ok(Some(Arc::new(store)))
        }
        Some(feature) if ["memory", "redis"].contains(&feature) => {
            Err(format!("STORE_URL: run with `--features axum,sqlite,{feature}`").into())
        }
        _ => Err("STORE_URL: expected redis://… or memory:".into()),
    }
}
