//! A canonical form of JSON that doesn't pass through numbers: `serde_json::Value` would fold large ones together.

/// How deep arrays and objects may be nested.
///
/// As deep as serde_json reads: a body too deep for this is too deep for most handlers, too. It bounds the stack,
/// and the cost: each level of objects may move its members once more.
const MAX_DEPTH: u8 = 127;

/// The JSON value in `text` as JSON again, the same bytes for each way to write the value; or none, if `text` must be
/// compared byte by byte: because it isn't JSON in UTF-8, is nested too deep, or names a member of an object twice.
///
/// Blanks are left out, members are sorted, strings have the fewest escapes. Numbers stay as they are written.
pub(super) fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    let mut writer = Writer {
        rest: str::from_utf8(text).ok()?.as_bytes(),
        out: Vec::with_capacity(text.len()),
        depth: 0,
    };
    writer.value()?;
    writer.blanks();
    writer.rest.is_empty().then_some(writer.out)
}

/// Reads from `rest`, and writes what it has read to `out`.
struct Writer<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
    depth: u8,
}

/// Where in `out` a member is written, its comma included.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Writer<'_> {
    fn value(&mut self) -> Option<()> {
        self.blanks();
        match self.rest.first()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        read(self)?;
        self.depth -= 1;
        Some(())
    }

    fn array(&mut self) -> Option<()> {
        self.copy(b'[')?;
        self.blanks();
        if self.copy(b']').is_some() {
            return Some(());
        }
        loop {
            self.value()?;
            self.blanks();
            if self.copy(b']').is_some() {
                return Some(());
            }
            self.copy(b',')?;
        }
    }

    fn object(&mut self) -> Option<()> {
        self.copy(b'{')?;
        self.blanks();
        if self.copy(b'}').is_some() {
            return Some(());
        }
        let mut members = Vec::new();
        let mut more = true;
        while more {
            self.blanks();
            let start = self.out.len();
            self.string()?;
            let name_end = self.out.len();
            self.blanks();
            self.copy(b':')?;
            self.value()?;
            self.blanks();
            more = self.eat(b',').is_some();
            // Behind the last one, too: it may not be the last when they are sorted.
            self.out.push(b',');
            members.push(Member {
                start,
                name_end,
                end: self.out.len(),
            });
        }
        self.eat(b'}')?;
        self.sort(members)?;
        self.out.pop();
        self.out.push(b'}');
        Some(())
    }

    /// Brings the members, which are all that is written from the first one on, into the order of their names.
    fn sort(&mut self, mut members: Vec<Member>) -> Option<()> {
        let name = |member: &Member| self.out.get(member.start..member.name_end);
        // Any order will do, and a canonical name stands for one name.
        if members.is_sorted_by(|a, b| name(a) < name(b)) {
            return Some(());
        }
        let first = members.first()?.start;
        members.sort_unstable_by(|a, b| name(a).cmp(&name(b)));
        if !members.is_sorted_by(|a, b| name(a) < name(b)) {
            return None;
        }
        let mut sorted = Vec::with_capacity(self.out.len() - first);
        for member in members {
            sorted.extend_from_slice(self.out.get(member.start..member.end)?);
        }
        self.out.truncate(first);
        self.out.append(&mut sorted);
        Some(())
    }

    fn string(&mut self) -> Option<()> {
        self.copy(b'"')?;
        loop {
            self.copy_while(|byte| !matches!(byte, b'"' | b'\\' | ..b' '));
            match self.byte()? {
                b'"' => break,
                b'\\' => {
                    let char = self.escaped()?;
                    self.write(char);
                }
                _ => return None,
            }
        }
        self.out.push(b'"');
        Some(())
    }

    /// The character that an escape stands for, behind its backslash.
    fn escaped(&mut self) -> Option<char> {
        Some(match self.byte()? {
            byte @ (b'"' | b'\\' | b'/') => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.code_unit()?;
                if let Some(char) = char::from_u32(high) {
                    return Some(char);
                }
                self.eat(b'\\')?;
                self.eat(b'u')?;
                let low = self.code_unit()?;
                let pair = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
                // A lone surrogate is no character; what a handler makes of it can't be told.
                char::from_u32(pair.then(|| 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))?)?
            }
            _ => return None,
        })
    }

    fn code_unit(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |unit, _| {
            Some(unit << 4 | char::from(self.byte()?).to_digit(16)?)
        })
    }

    /// Writes a character of a string.
    fn write(&mut self, char: char) {
        match char {
            '"' | '\\' => self.out.extend([b'\\', char as u8]),
            '\0'..' ' => self
                .out
                .extend(format!("\\u{:04x}", u32::from(char)).as_bytes()),
            _ => self.out.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.copy(b'-');
        if self.copy(b'0').is_none() {
            self.digits()?;
        }
        if self.copy(b'.').is_some() {
            self.digits()?;
        }
        if self.copy(b'e').or_else(|| self.copy(b'E')).is_some() {
            let _ = self.copy(b'+').or_else(|| self.copy(b'-'));
            self.digits()?;
        }
        Some(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Option<()> {
        (self.copy_while(|byte| byte.is_ascii_digit()) > 0).then_some(())
    }

    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(literal)?;
        self.out.extend_from_slice(literal);
        Some(())
    }

    fn blanks(&mut self) {
        while let Some((b' ' | b'\t' | b'\n' | b'\r', rest)) = self.rest.split_first() {
            self.rest = rest;
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[byte])?;
        Some(())
    }

    fn copy(&mut self, byte: u8) -> Option<()> {
        self.eat(byte)?;
        self.out.push(byte);
        Some(())
    }

    fn copy_while(&mut self, belongs: impl Fn(u8) -> bool) -> usize {
        let length = self.rest.iter().take_while(|byte| belongs(**byte)).count();
        let (run, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.out.extend_from_slice(run);
        length
    }
}
