//! As much of RFC 9651 as one string item with parameters needs.

/// The text of an item that is a string, without the string's opening quote, and with nothing but spaces behind it.
///
/// The parameters are checked and dropped: the draft defines none for the key.
pub(crate) fn string_item(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut rest = Rest(text);
    let string = rest.string()?;
    match rest.parameters() {
        Some(()) if rest.0.iter().all(|byte| *byte == b' ') => Ok(string),
        _ => Err("what follows the closing quote is not a list of parameters"),
    }
}

/// The item that is this string. RFC 9651 §4.1.6, for text that is ASCII.
pub(crate) fn quoted(text: &str) -> String {
    let mut item = String::with_capacity(text.len() + 2);
    item.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            item.push('\\');
        }
        item.push(character);
    }
    item.push('"');
    item
}

/// What is still to be read. Each method takes off what it is named after, or tells that it isn't there.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn string(&mut self) -> Result<Vec<u8>, &'static str> {
        let mut text = Vec::with_capacity(self.0.len());
        loop {
            match self.byte() {
                Some(b'"') => return Ok(text),
                Some(b'\\') => match self.byte() {
                    Some(escaped @ (b'"' | b'\\')) => text.push(escaped),
                    _ => return Err("a backslash escapes only a quote or a backslash"),
                },
                Some(byte @ b' '..=b'~') => text.push(byte),
                Some(_) => return Err("a quoted key has a character that isn't ASCII text"),
                None => return Err("the closing quote is missing"),
            }
        }
    }

    /// RFC 9651 §4.2.3.2.
    fn parameters(&mut self) -> Option<()> {
        while self.eat(b';') {
            self.take_while(|byte| byte == b' ');
            self.key()?;
            if self.eat(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn key(&mut self) -> Option<()> {
        let first = self.byte()?;
        self.take_while(
            |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
        );
        matches!(first, b'a'..=b'z' | b'*').then_some(())
    }

    /// RFC 9651 §4.2.3.1: the first byte tells the type.
    fn bare_item(&mut self) -> Option<()> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.number().map(drop),
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
                self.take_while(is_token);
                Some(())
            }
            b'"' => {
                self.byte()?;
                self.string().map(drop).ok()
            }
            b':' => self.byte_sequence(),
            b'?' => {
                self.byte()?;
                matches!(self.byte()?, b'0' | b'1').then_some(())
            }
            b'@' => {
                self.byte()?;
                matches!(self.number()?, Number::Integer).then_some(())
            }
            b'%' => self.display_string(),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Number> {
        self.eat(b'-');
        let whole = self.take_while(|byte| byte.is_ascii_digit()).len();
        if !self.eat(b'.') {
            return (1..=15).contains(&whole).then_some(Number::Integer);
        }
        let fraction = self.take_while(|byte| byte.is_ascii_digit()).len();
        ((1..=12).contains(&whole) && (1..=3).contains(&fraction)).then_some(Number::Decimal)
    }

    /// Base64 whose padding may be missing, as the RFC asks of parsers.
    fn byte_sequence(&mut self) -> Option<()> {
        self.byte()?;
        let data =
            self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
        let padding = self.take_while(|byte| byte == b'=').len();
        let most = match data.len() % 4 {
            0 => 0,
            2 => 2,
            3 => 1,
            _ => return None,
        };
        (padding <= most && self.eat(b':')).then_some(())
    }

    /// Text with percent-encoded UTF-8 in it, in lower-case hex only.
    fn display_string(&mut self) -> Option<()> {
        self.byte()?;
        if !self.eat(b'"') {
            return None;
        }
        let mut text = Vec::new();
        loop {
            match self.byte()? {
                b'"' => return str::from_utf8(&text).is_ok().then_some(()),
                b'%' => text.push(self.hex_digit()? << 4 | self.hex_digit()?),
                byte @ b' '..=b'~' => text.push(byte),
                _ => return None,
            }
        }
    }

    fn hex_digit(&mut self) -> Option<u8> {
        match self.byte()? {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn eat(&mut self, byte: u8) -> bool {
        match self.0.strip_prefix(&[byte]) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let length = self.0.iter().take_while(|byte| belongs(**byte)).count();
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }
}

enum Number {
    Integer,
    Decimal,
}

/// A byte of a token behind its first: an RFC 9110 `tchar`, a colon or a slash.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}
