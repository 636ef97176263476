//! The tool as a process.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::Command;

use crate::server::example;

pub struct Told {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Told {
    /// The one document.
    #[track_caller]
    pub fn json(&self) -> Value {
        let [document] = self.json_lines().try_into().expect("one document");
        document
    }

    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// What a line of `name  value` says.
    #[track_caller]
    pub fn field(&self, name: &str) -> &str {
        let line = self.out.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {}", self.out));
        line[name.len()..].trim()
    }

    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }
}

/// Without a terminal.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(example("ops"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.env_remove("STORE_URL");
    command
}

pub async fn ops(arguments: &[&str]) -> Told {
    told(
        command(arguments)
            .output()
            .await
            .expect("the tool's output"),
    )
}

pub fn told(output: Output) -> Told {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Told {
        code: output.status.code().expect("an exit code"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}
