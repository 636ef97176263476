//! The parts of a database's URL.

use std::ops::Range;

/// The same server's database of this name.
pub fn with_database(url: &str, name: &str) -> String {
    let parameters = url.find('?').unwrap_or(url.len());
    let end = address_in(url).end;
    format!("{}/{name}{}", &url[..end], &url[parameters..])
}

/// Its host and port, both of which it must have.
pub fn address(url: &str) -> &str {
    &url[address_in(url)]
}

/// The same database, reached there.
pub fn with_address(url: &str, address: &str) -> String {
    let Range { start, end } = address_in(url);
    format!("{}{address}{}", &url[..start], &url[end..])
}

fn address_in(url: &str) -> Range<usize> {
    let scheme = url.find("://").expect("a URL") + "://".len();
    let end = url[scheme..].find(['/', '?']);
    let end = end.map_or(url.len(), |end| scheme + end);
    let user = url[scheme..end].rfind('@');
    user.map_or(scheme, |at| scheme + at + 1)..end
}
