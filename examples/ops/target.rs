use clap::Args;
use http::HeaderValue;
use tower_idempotency::{IdempotencyKey, KeyFormat, RecordKey, Scope};

/// Which record: by scope and key, as the service derives it, or by its record key.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The record key, 64 hexadecimal digits, as `list` shows it
    #[arg(value_parser = record_key, required_unless_present = "key", conflicts_with_all = ["key", "scope", "namespace", "single_tenant"])]
    record_key: Option<RecordKey>,
    /// What the client sent in the Idempotency-Key header, with its quotes or without
    #[arg(long, value_parser = header)]
    key: Option<IdempotencyKey>,
    /// Whose key it is: what the service's `ScopeBy` makes of the request
    #[arg(long, value_parser = scope, required_unless_present_any = ["record_key", "single_tenant"])]
    scope: Option<Scope>,
    /// The scope of a service with `ScopeBy::single_tenant()`
    #[arg(long, conflicts_with = "scope")]
    single_tenant: bool,
    /// What the service's layer has by `with_namespace`
    #[arg(long, default_value = "", hide_default_value = true)]
    namespace: String,
}

impl Target {
    pub(crate) fn record_key(&self) -> Option<RecordKey> {
        let Some(key) = &self.key else {
            return self.record_key;
        };
        let scope = self.scope.clone().unwrap_or_else(Scope::single_tenant);
        Some(RecordKey::derive(&self.namespace, &scope, key))
    }
}

fn header(text: &str) -> Result<IdempotencyKey, String> {
    let value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
    let key = KeyFormat::default().parse(&value);
    key.map_err(|error| error.to_string())
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::new(text).ok_or_else(|| "empty: is it --single-tenant?".to_owned())
}

fn record_key(digits: &str) -> Result<RecordKey, String> {
    RecordKey::from_hex(digits).ok_or_else(|| "a record key has 64 hexadecimal digits".to_owned())
}
