use std::{error::Error, fmt, io, process::ExitCode, time::Duration};

use tower_idempotency::StoreError;

/// Why a command didn't do what it should, and the exit code for it.
#[derive(Debug)]
pub(crate) struct Failure {
    exit_code: u8,
    message: String,
}

const REFUSED: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 3;

impl Failure {
    /// There is no such record, nobody confirmed, or it has changed meanwhile.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self {
            exit_code: REFUSED,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            exit_code: USAGE,
            message: format!("error: {message}"),
        }
    }

    /// Of the command line.
    pub(crate) fn arguments(error: &clap::Error) -> Self {
        Self {
            exit_code: USAGE,
            message: error.render().to_string(),
        }
    }

    pub(crate) fn silent(limit: Duration) -> Self {
        Self {
            exit_code: FAILED,
            message: format!("error: the database did not answer within {limit:?}"),
        }
    }

    fn store(error: &dyn Error) -> Self {
        let (mut messages, mut cause) = (Vec::new(), Some(error));
        while let Some(error) = cause {
            messages.push(error.to_string());
            cause = error.source();
        }
        // Some repeat what they were caused by.
        messages.dedup_by(|cause, error| error.contains(cause.as_str()));
        Self {
            exit_code: FAILED,
            message: format!("error: {}", messages.join(": ")),
        }
    }

    /// Of the check of a table of leases.
    pub(crate) fn no_leases(error: StoreError) -> Self {
        let mut failure = Self::from(error);
        let hint = "\nIf the service has a transaction store, say --transaction.";
        failure.message.push_str(hint);
        failure
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::store(&error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Configuration(_) = error {
            // It might repeat the URL.
            return Self::usage("the store's URL can't be read");
        }
        Self::store(&error)
    }
}

impl From<io::Error> for Failure {
    /// Of the output or the terminal. What was asked for may be done all the same.
    fn from(error: io::Error) -> Self {
        Self {
            exit_code: FAILED,
            message: format!("error: input or output: {error}"),
        }
    }
}
