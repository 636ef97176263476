//! The oracle for JSON: what serde_json reads, without objects that name a member twice.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value whose numbers are told apart as integers or floats, not by their text.
#[derive(Debug, PartialEq)]
pub(crate) enum Strict {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    Array(Vec<Strict>),
    Object(BTreeMap<String, Strict>),
}

impl Strict {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Read)
    }
}

struct Read;

impl<'de> Visitor<'de> for Read {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Strict, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Strict::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Strict, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = access.next_entry()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a member named twice"));
            }
        }
        Ok(Strict::Object(members))
    }
}
