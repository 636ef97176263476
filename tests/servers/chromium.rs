//! Chromium, which ChromeDriver starts and drives.

use std::{net::SocketAddr, path::PathBuf, sync::OnceLock};

use uuid::Uuid;

use super::{
    external,
    place::directory_of,
    port::Port,
    process::{Process, Program},
};

/// ChromeDriver ends without its browsers, which are in its process group: all end together. (SIGTERM is ignored from here on, and a
/// shell can't change that.)
const RUN: &str = r#"
exec setsid sh -c 'trap "kill -KILL 0" USR1; HOME=$PWD chromedriver --port="$PORT" & wait'
"#;

/// Without a window, without a sandbox of its own (the tests may be run as root), and without a word to anybody but the tests.
pub const ARGUMENTS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--hide-scrollbars",
];

/// The ChromeDriver of this test binary. Each session with it is a browser of its own.
///
/// The first call starts it, and blocks its thread meanwhile. `None` if there is none on this machine, or no Chromium.
pub fn chromium() -> Option<&'static Chromium> {
    static SHARED: OnceLock<Option<Chromium>> = OnceLock::new();
    SHARED.get_or_init(Chromium::start).as_ref()
}

#[derive(Debug)]
pub struct Chromium(Process);

impl Chromium {
    fn start() -> Option<Self> {
        let Some(programs) = directory_of(&["chromium", "chromedriver"]) else {
            return external::missing("Chromium");
        };
        external::tell(&external::version_of(&programs.join("chromedriver")));
        Some(Self(Process::start(&Program {
            name: "chromedriver",
            user: "nobody",
            directories: vec![programs],
            install: "true",
            run: RUN,
            stop: "USR1",
            settings: String::new(),
            port: Port::free,
            is_ready,
        })))
    }

    /// Where it is spoken to in WebDriver.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.0.port()))
    }

    /// A directory for a browser, which makes it. It goes with this process.
    pub fn profile(&self) -> PathBuf {
        self.0.directory().join(Uuid::new_v4().to_string())
    }
}

/// One that doesn't get the port ends before it says so.
fn is_ready(process: &Process) -> bool {
    let log = std::fs::read_to_string(process.directory().join("log")).unwrap_or_default();
    log.contains("ChromeDriver was started successfully")
}
