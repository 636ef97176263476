use sqlx::Error;

use super::Attempts;

/// Runs a statement (or a transaction) that may lose against another one, again if it did: the database has undone it, and the
/// other is through by the time the pause is over, which is random, or those who met would meet again. The last attempt's error is the caller's.
pub(crate) async fn retry<T, F>(
    is_conflict: impl Fn(&Error) -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut attempts = Attempts::default();
    loop {
        match attempt().await {
            Err(error) if is_conflict(&error) => {
                if !attempts.again().await {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::store::sql::attempts::ATTEMPTS;

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_retried_and_nothing_else() {
        let runs = Cell::new(0);
        let run = async |fails: usize| {
            runs.set(runs.get() + 1);
            if runs.get() <= fails {
                Err(Error::PoolTimedOut)
            } else {
                Ok(runs.get())
            }
        };
        let is_conflict = |error: &Error| matches!(error, Error::PoolTimedOut);
        assert!(matches!(retry(is_conflict, || run(3)).await, Ok(4)));
        runs.set(0);
        assert!(retry(|_| false, || run(3)).await.is_err());
        assert_eq!(runs.get(), 1);
        runs.set(0);
        assert!(retry(is_conflict, || run(usize::MAX)).await.is_err());
        assert_eq!(runs.get(), ATTEMPTS);
    }
}
