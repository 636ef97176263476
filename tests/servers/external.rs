//! What is asked of the surroundings, and told to who runs the tests.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// The server that the environment names, to be used instead of one of our own.
pub fn url(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok()?;
    (!url.is_empty()).then_some(url)
}

/// No such server: its tests are skipped, which is told; where all must run, that is a failure.
pub fn missing<T>(server: &str) -> Option<T> {
    let ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    assert!(!ci, "{server} is not installed");
    missing_as_ever(server)
}

/// The same for a server that Debian has no package of: also where all must run, its tests are skipped.
pub fn missing_as_ever<T>(server: &str) -> Option<T> {
    tell(&format!("SKIPPED: {server} is not installed"));
    None
}

/// The interpreter of a virtual environment, with what the `requirements.txt` of a test wants.
///
/// None if `scripts/venv` didn't make it: see [`missing`].
pub fn python(environment: &str, directory: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("the target directory");
    let place = target.join(environment);
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let requirements = |of: &Path| fs::read(of.join("requirements.txt")).ok();
    let installed = requirements(&place);
    if installed.is_none() || installed != requirements(&wanted) {
        return missing(&format!(
            "{environment} (scripts/venv {environment} {directory})"
        ));
    }
    Some(place.join("bin/python"))
}

/// What the program says of itself.
pub fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let output = output.expect("a program that runs").stdout;
    let output = String::from_utf8_lossy(&output);
    output.lines().next().unwrap_or_default().to_owned()
}

/// For those who run the tests, also when they pass: the test harness would keep what `println` writes.
pub fn tell(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("an error output");
}
