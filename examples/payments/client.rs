use std::{path::Path, process::Stdio};

use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::BoxError;

/// A server in a process of its own, which ends with this value.
pub(crate) struct Server {
    pub(crate) address: String,
    process: Child,
}

impl Server {
    /// Starts this program as a server on a free port, and waits until it listens.
    pub(crate) async fn start(database: &Path, crash: Option<&str>) -> Result<Self, BoxError> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("child")
            .env("ADDR", "127.0.0.1:0")
            .env("DATABASE_URL", format!("sqlite://{}", database.display()))
            .env_remove("PAYMENTS_CRASH")
            .envs(crash.map(|point| ("PAYMENTS_CRASH", point)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        let line = line.ok_or("the server did not start")?;
        let address = line
            .strip_prefix("listening on ")
            .ok_or("the server does not tell where it listens")?;
        Ok(Self {
            address: address.to_owned(),
            process,
        })
    }

    /// Waits for a server that dies by itself, and tells how.
    pub(crate) async fn died(mut self) -> Result<String, BoxError> {
        Ok(self.process.wait().await?.to_string())
    }

    pub(crate) async fn kill(mut self) -> Result<(), BoxError> {
        Ok(self.process.kill().await?)
    }

    /// Sends a charge of Alice's. An error means that no answer came, which tells nothing about the charge.
    pub(crate) async fn charge(&self, key: &str, amount: u32) -> Result<Answer, BoxError> {
        let order = format!(r#"{{"amount":{amount},"currency":"eur","card":"tok_visa"}}"#);
        let request = Request::post(format!("{}/charges", self.address))
            .header("authorization", "Bearer alice")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::<bytes::Bytes>::from(order))?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer {
            status,
            headers,
            body: String::from_utf8(body.into())?,
        })
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}
