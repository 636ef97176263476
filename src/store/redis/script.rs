//! The scripts: each call of the store is one, so that it is one round trip and one atomic step.

use std::sync::LazyLock;

use redis::Cmd;

/// A script, and the digest that the server knows it by.
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

/// A script with what goes before it.
macro_rules! script {
    ($($part:literal),+) => {{
        const TEXT: &str = concat!($(include_str!(concat!("scripts/", $part, ".lua"))),+);
        Script {
            text: TEXT,
            digest: LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned()),
        }
    }};
}

pub(super) static RESERVE: Script = script!("record", "reserve");
pub(super) static RENEW: Script = script!("record", "head", "renew");
pub(super) static SETTLE: Script = script!("record", "settle");
pub(super) static RELEASE: Script = script!("record", "head", "release");
pub(super) static READ: Script = script!("record", "read");
pub(super) static NOTE: Script = script!("record", "head", "note");
pub(super) static NOTES: Script = script!("record", "head", "notes");
pub(super) static FORGET: Script = script!("forget");

/// One call of a script.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    script: &'static Script,
    key: &'a str,
    arguments: &'a [&'a [u8]],
}

impl<'a> Call<'a> {
    pub(super) fn new(script: &'static Script, key: &'a str, arguments: &'a [&'a [u8]]) -> Self {
        Self {
            script,
            key,
            arguments,
        }
    }

    /// By its digest, which the server knows unless it was restarted or its scripts were flushed.
    pub(super) fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// By its text, which the server then knows. Not `SCRIPT LOAD`: in a cluster that would be another command to each node.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(self.key);
        for argument in self.arguments {
            command.arg(argument);
        }
        command
    }
}
