//! Where programs are found, as whom they run, and on which port they listen.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
};

use rustix::process::getuid;
use uuid::Uuid;

/// The first directory that holds all of these programs: of `PATH`, then of Debian's places.
pub fn directory_of(programs: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(debian)
        .chain(postgres_versions())
        .find(|directory| programs.iter().all(|name| directory.join(name).is_file()))
}

/// Debian keeps the programs of each version apart, and off `PATH`. The newest comes first.
fn postgres_versions() -> Vec<PathBuf> {
    let versions = Path::new("/usr/lib/postgresql").read_dir();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, path)| path).collect()
}

/// As whom a server runs, where that is not who runs the tests: the servers refuse to run as root.
pub fn user_instead_of_root(package: &str) -> Option<(u32, u32)> {
    if !getuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("the list of users");
    let ids = |name: &str| {
        let mut fields = users
            .lines()
            .map(|line| line.split(':'))
            .find(|fields| fields.clone().next() == Some(name))?
            .skip(2);
        let (user, group) = (fields.next()?, fields.next()?);
        Some((user.parse().ok()?, group.parse().ok()?))
    };
    let user = ids(package).or_else(|| ids("nobody"));
    Some(user.expect("a user to run a server as"))
}

/// A port that nobody listens on.
///
/// It is no port that the system gives to outgoing connections: such a connection could take the port of a server that is
/// down for a moment. A client that tries again and again would even end up connected to itself.
pub fn free_port() -> u16 {
    loop {
        let port = random_port(20_000);
        if is_free(port) {
            return port;
        }
    }
}

/// The same for a node of a Redis cluster, whose nodes talk to each other on the port that is higher by 10000.
pub fn free_ports_of_node() -> u16 {
    loop {
        // The higher one isn't given to outgoing connections either.
        let port = random_port(12_000);
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

fn random_port(count: u16) -> u16 {
    let random = u16::from_le_bytes([Uuid::new_v4().as_bytes()[0], Uuid::new_v4().as_bytes()[1]]);
    10_000 + random % count
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
