//! What a terminal may be shown.

use std::{
    fmt::Write as _,
    io::{self, ErrorKind, Write},
    time::Duration,
};

use serde_json::Value;

use crate::failure::Failure;

/// Without anything that a terminal would take for a command, or that would hide or turn round what is beside it.
pub(crate) fn escaped(text: &str) -> String {
    escaped_bytes(text.as_bytes())
}

/// The same of bytes that may be no text.
pub(crate) fn escaped_bytes(bytes: &[u8]) -> String {
    let mut escaped = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\'' => escaped.push(character),
                _ => escaped.extend(character.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string can't fail.
            let _ = write!(escaped, "\\x{byte:02x}");
        }
    }
    escaped
}

/// A line with each URL cut off behind its scheme, as there may be a password in it: up to the last quotation mark of the line, since
/// a password may have one.
pub(crate) fn without_urls(text: &str) -> String {
    let mut parts = text.split("://");
    let mut cut = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.rfind(['\'', '"']).unwrap_or(part.len());
        cut.push_str("://…");
        cut.push_str(part.get(end..).unwrap_or_default());
    }
    cut
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string can't fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// In whole seconds, or milliseconds if it is less than one.
pub(crate) fn time(duration: Duration) -> String {
    let rounded = match duration.as_secs() {
        0 => Duration::from_millis(u64::from(duration.subsec_millis())),
        seconds => Duration::from_secs(seconds),
    };
    humantime::format_duration(rounded).to_string()
}

/// Writes to the standard output. Whoever reads it may have had enough.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let printed = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// One line, in ASCII only: what JSON leaves as it is can be a terminal's command, too.
pub(crate) fn print_json(document: &Value) -> Result<(), Failure> {
    let mut line = String::new();
    for character in document.to_string().chars() {
        if character.is_ascii() && !character.is_ascii_control() {
            line.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string can't fail.
            let _ = write!(line, "\\u{unit:04x}");
        }
    }
    print(&format!("{line}\n"))
}
