//! A command-line tool for whoever operates a service with this layer: which keys hang, what is under one, free it, clean up.
//!
//! Run with `cargo run --example ops --features sqlite,postgres,mysql,redis -- <store-url> <command>`
//!
//! ```sh
//! ops='cargo run -q --example ops --features sqlite,postgres,mysql,redis --'
//! $ops sqlite://shop.db --transaction inspect --scope alice --key 8e03978e-40d5-43dd-bc93-6894a57f9324
//! # record key  5d0c…
//! # state       completed
//! # …
//! $ops postgres://shop@localhost/shop list --older-than 10m
//! # RECORD KEY                          STATE      AGE      ATTEMPT  LEASE LEFT  EXPIRES IN
//! # 4fe2…                               unknown    3h 2m 5s       1  -           20h 57m 55s
//! $ops postgres://shop@localhost/shop forget 4fe2…
//! # record key  4fe2…
//! # …
//! # Its run may have taken effect. The next request with this key runs. Forget it? Type `yes`:
//! STORE_URL=mysql://shop:secret@localhost/shop $ops - stats --json
//! # {"completed":86012,"expired":310,"in_flight":2,"kind":"lease","response_bytes":30104200,"unknown":1}
//! ```
//!
//! Redis is `redis://host:port`, and a cluster `redis-cluster://host:port,host:port` with some of its nodes. For TLS (`rediss://`,
//! `rediss-cluster://`) build with a TLS feature of the driver as well, as in `--features sqlite,redis,redis/tokio-native-tls-comp`.
//!
//! A URL of `-` stands for that of the environment variable `STORE_URL`: what is on a command line, a password say, others can
//! see. The tool checks the table first, so its database user needs the privileges of the application's; on Redis it checks the
//! server, and for `list` and `stats` needs some more (see `RedisStore`).
//!
//! Exit codes: 0 done; 1 there is no such record, the forgetting was not confirmed, or the record changed meanwhile; 2 wrong usage;
//! 3 the store or the output failed.

mod arguments;
mod commands;
mod failure;
mod forget;
mod json;
mod list;
#[cfg(feature = "redis")]
mod redis;
mod show;
mod stores;
mod target;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::{arguments::Arguments, failure::Failure, text::escaped};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Arguments::try_parse() {
        Ok(arguments) => run(&arguments).await,
        Err(error) if error.use_stderr() => Err(Failure::arguments(&error)),
        Err(help) => text::print(&help.render().to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.message().lines() {
                eprintln!("{}", escaped(&text::without_urls(line)));
            }
            failure.exit_code()
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let opened = stores::open(arguments).await?;
    commands::run(&opened, arguments).await
}
