//! The SDK as it is installed, in a process of its own.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::external;

const DIRECTORY: &str = "tests/stripe_sdk";

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// An interpreter that has the SDK.
#[derive(Clone, Debug)]
pub struct Sdk(PathBuf);

/// What the SDK gave its caller.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Came {
    Charge {
        id: String,
        amount: i64,
        replayed: bool,
    },
    Error {
        error: String,
        status: Option<u16>,
    },
}

/// A call of the SDK.
#[derive(Debug)]
pub struct Call {
    process: Child,
    retries: watch::Receiver<usize>,
    told: JoinHandle<()>,
}

impl Sdk {
    /// None if `scripts/venv stripe-sdk tests/stripe_sdk` didn't install it.
    pub fn find() -> Option<Self> {
        external::python("stripe-sdk", DIRECTORY).map(Self)
    }

    /// Starts a charge of 10 euros, whose attempts end after so many seconds.
    pub fn charge(&self, api: SocketAddr, timeout: f32, key: Option<&str>) -> Call {
        self.charge_of(1000, api, timeout, key)
    }

    pub fn charge_of(&self, amount: i64, api: SocketAddr, timeout: f32, key: Option<&str>) -> Call {
        let mut process = Command::new(&self.0)
            .arg("charge.py")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(DIRECTORY))
            .arg(format!("http://{api}"))
            .args([timeout.to_string(), amount.to_string()])
            .args(key)
            // Nothing that names a proxy of this machine.
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let log = process.stderr.take().expect("its error output");
        let (count, retries) = watch::channel(0);
        let told = tokio::spawn(async move {
            let mut lines = BufReader::new(log).lines();
            while let Some(line) = lines.next_line().await.expect("a line") {
                // Kept by the harness, for a test that fails.
                eprintln!("{line}");
                count.send_modify(|count| *count += usize::from(line.contains("Initiating retry")));
            }
        });
        Call {
            process,
            retries,
            told,
        }
    }
}

impl Call {
    /// Waits until the SDK begins this retry.
    pub async fn retries(&mut self, count: usize) {
        let begun = self.retries.wait_for(|begun| *begun >= count);
        let begun = timeout(LIMIT, begun).await.expect("in time");
        drop(begun.expect("a process that goes on"));
    }

    pub async fn came(mut self) -> Came {
        let mut output = String::new();
        let mut stdout = self.process.stdout.take().expect("its output");
        let read = timeout(LIMIT, stdout.read_to_string(&mut output)).await;
        read.expect("in time").expect("text");
        self.told.await.expect("the end of its error output");
        serde_json::from_str(&output).expect("what came of it")
    }
}
