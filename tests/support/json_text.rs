//! A writer that makes use of all the freedom that JSON leaves.

use std::fmt::Write;

use serde_json::Value;

/// One of the many ways to write `value`; `choices` say which.
pub(crate) fn written(value: &Value, choices: &[u8]) -> String {
    let mut out = String::new();
    write(value, &mut choices.iter().copied().cycle(), &mut out);
    out
}

fn write(value: &Value, choices: &mut impl Iterator<Item = u8>, out: &mut String) {
    blanks(choices, out);
    match value {
        Value::String(text) => write_text(text, choices, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write(item, choices, out);
            }
            blanks(choices, out);
            out.push(']');
        }
        Value::Object(members) => {
            let mut shuffled: Vec<_> = members
                .iter()
                .map(|member| (choices.next(), member))
                .collect();
            shuffled.sort_by_key(|(choice, _)| *choice);
            out.push('{');
            for (i, (_, (name, value))) in shuffled.into_iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                blanks(choices, out);
                write_text(name, choices, out);
                blanks(choices, out);
                out.push(':');
                write(value, choices, out);
            }
            blanks(choices, out);
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => write!(out, "{value}").expect("a leaf"),
    }
    blanks(choices, out);
}

fn write_text(text: &str, choices: &mut impl Iterator<Item = u8>, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match (choices.next().unwrap_or_default() % 4, char) {
            (0, _) => char
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| write!(out, "\\u{unit:04x}").expect("an escape")),
            (1, _) => char
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| write!(out, "\\u{unit:04X}").expect("an escape")),
            (2, '/') => out.push_str("\\/"),
            (_, '\u{8}') => out.push_str("\\b"),
            (_, '\u{c}') => out.push_str("\\f"),
            (_, '\n') => out.push_str("\\n"),
            (_, '\r') => out.push_str("\\r"),
            (_, '\t') => out.push_str("\\t"),
            (_, '"') => out.push_str("\\\""),
            (_, '\\') => out.push_str("\\\\"),
            (_, '\0'..' ') => write!(out, "\\u{:04x}", u32::from(char)).expect("an escape"),
            _ => out.push(char),
        }
    }
    out.push('"');
}

fn blanks(choices: &mut impl Iterator<Item = u8>, out: &mut String) {
    out.push_str(match choices.next().unwrap_or_default() % 8 {
        1 => " ",
        2 => "\n",
        3 => "\r\t ",
        _ => "",
    });
}
