/// SQLite's clock in microseconds since 1970, as a literal for `concat!`. It moves in whole milliseconds, and stands still within
/// one statement. `unixepoch('subsec')` would be plainer, but is NULL before SQLite 3.42.
macro_rules! now {
    () => {
        "(CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) * 1000)"
    };
}

pub(super) use now;
