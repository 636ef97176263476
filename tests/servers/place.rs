//! Where programs are found, and as whom they run.

use std::path::{Path, PathBuf};

use rustix::process::getuid;

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
