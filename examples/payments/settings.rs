use std::{env, fs, time::Duration};

use tower_idempotency::{defaults, store::Takeover};

use crate::BoxError;

/// What `DATABASE_URL` says, or a file under `target/`.
pub(crate) fn database_url() -> Result<String, BoxError> {
    if let Ok(url) = env::var("DATABASE_URL") {
        return Ok(url);
    }
    fs::create_dir_all("target")?;
    Ok("sqlite://target/payments.db".into())
}

/// How long a charge may run.
pub(crate) fn run_limit() -> Result<Duration, BoxError> {
    seconds("RUN_LIMIT", Duration::from_secs(60))
}

/// How long a crash blocks a key on a lease store.
pub(crate) fn lease() -> Result<Duration, BoxError> {
    seconds("LEASE", defaults::LEASE)
}

/// What a lease store does then.
pub(crate) fn takeover() -> Result<Takeover, BoxError> {
    match env::var("TAKEOVER").as_deref() {
        Err(env::VarError::NotPresent) | Ok("refuse") => Ok(Takeover::Refuse),
        Ok("run-again") => Ok(Takeover::RunAgain),
        _ => Err("TAKEOVER: expected refuse or run-again".into()),
    }
}

fn seconds(name: &str, default: Duration) -> Result<Duration, BoxError> {
    let Ok(value) = env::var(name) else {
        return Ok(default);
    };
    let seconds = value.parse().map_err(|error| format!("{name}: {error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{name}: {error}").into())
}
