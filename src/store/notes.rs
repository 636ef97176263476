//! The bytes of a record's notes, for stores that append to them. Integers are big-endian:
//!
//! ```text
//! for each note: format: u8 = 1 | name length: u8, name | value length: u32, value
//! ```
//!
//! So a note is written without those before it being read. The same one written twice, as when a call is sent again, is there twice,
//! and read once: the first of a name counts.

use super::Note;
use crate::{StoreError, StoreErrorKind};

const FORMAT: u8 = 1;

/// The bytes to append.
pub(crate) fn encoded(note: &Note) -> Result<Vec<u8>, StoreError> {
    let too_large = || StoreError::new(StoreErrorKind::Other, "a note is larger than it may be");
    let name_length = u8::try_from(note.name.len()).map_err(|_too_long| too_large())?;
    let value_length = u32::try_from(note.value.len()).map_err(|_too_long| too_large())?;
    let mut bytes = Vec::with_capacity(note.size() + 6);
    bytes.extend([FORMAT, name_length]);
    bytes.extend(note.name.as_bytes());
    bytes.extend(value_length.to_be_bytes());
    bytes.extend(&note.value);
    Ok(bytes)
}

/// All that were appended. What can't be read is an error: a step that is not known to be done would be done again.
pub(crate) fn decoded(mut bytes: &[u8]) -> Result<Vec<Note>, StoreError> {
    let mut notes: Vec<Note> = Vec::new();
    while !bytes.is_empty() {
        let note = next(&mut bytes).ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "the notes of a record can't be read by this release",
            )
        })?;
        if notes.iter().all(|earlier| earlier.name != note.name) {
            notes.push(note);
        }
    }
    Ok(notes)
}

fn next(bytes: &mut &[u8]) -> Option<Note> {
    let [FORMAT, name_length] = *take(bytes, 2)? else {
        return None;
    };
    let name = take(bytes, name_length.into())?.to_vec();
    let value_length = u32::from_be_bytes(take(bytes, 4)?.try_into().ok()?);
    let value = take(bytes, usize::try_from(value_length).ok()?)?;
    Some(Note::new(String::from_utf8(name).ok()?, value))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_appended_and_the_first_of_a_name_counts() {
        let all: Vec<u8> = (0..=255).collect();
        let notes = [
            Note::new("", ""),
            Note::new("authorize", all),
            Note::new("ß".repeat(127), [7; 300]),
        ];
        let mut bytes = Vec::new();
        for note in notes.iter().chain([&Note::new("authorize", "again")]) {
            bytes.extend(encoded(note).expect("bytes"));
        }
        assert_eq!(decoded(&bytes).expect("notes"), notes);
        assert_eq!(decoded(&[]).expect("notes"), []);
    }

    #[test]
    fn the_format_never_changes() {
        let bytes = encoded(&Note::new("ab", "c")).expect("bytes");
        assert_eq!(bytes, b"\x01\x02ab\0\0\0\x01c");
    }

    #[test]
    fn what_is_cut_off_or_of_a_later_format_is_an_error() {
        let bytes = encoded(&Note::new("name", "value")).expect("bytes");
        for length in 1..bytes.len() {
            assert!(decoded(&bytes[..length]).is_err(), "{length} bytes");
        }
        let later = [&[2][..], &bytes[1..]].concat();
        assert!(decoded(&later).is_err());
        let no_text = b"\x01\x01\xff\0\0\0\0";
        assert!(decoded(no_text).is_err());
    }

    #[test]
    fn a_name_that_is_too_long_is_not_cut() {
        assert!(encoded(&Note::new("n".repeat(256), "")).is_err());
    }
}
