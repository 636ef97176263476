//! What a client sent.

/// One attempt of a client, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// With the empty line that ends it.
    pub head: Vec<u8>,
    /// As it was framed, with the sizes of chunks. What was read of it, if the request was cut.
    pub body: Vec<u8>,
}

impl Request {
    /// The values of this header, in order.
    pub fn header(&self, name: &str) -> Vec<String> {
        let head = String::from_utf8_lossy(&self.head);
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(line, _)| line.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    }

    /// Its one key.
    ///
    /// # Panics
    ///
    /// Panics if it has none, or several.
    pub fn key(&self) -> String {
        let mut keys = self.header("idempotency-key");
        assert_eq!(keys.len(), 1, "one key: {keys:?}");
        keys.remove(0)
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether its first line starts with this, like `POST /charges`.
    pub fn is(&self, start: &str) -> bool {
        self.head.starts_with(start.as_bytes())
    }
}
