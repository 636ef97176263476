//! The contract in the trait's docs, the checks of the kit and the tests that the macro makes are the same clauses.
#![cfg(feature = "conformance")]

use std::collections::{BTreeMap, BTreeSet};

const CONTRACT: &str = include_str!("../src/store/contract.rs");
const LISTING: &str = include_str!("../src/store/listing.rs");
const LISTING_CHECKS: &str = include_str!("../src/conformance/listing.rs");

const STEPS: &str = include_str!("../src/store/steps.rs");
const STEPS_CHECKS: &str = include_str!("../src/conformance/steps.rs");

const CHECKS: [(&str, &str); 6] = [
    ("late", include_str!("../src/conformance/late.rs")),
    ("operating", include_str!("../src/conformance/operating.rs")),
    ("reserving", include_str!("../src/conformance/reserving.rs")),
    ("settling", include_str!("../src/conformance/settling.rs")),
    ("time", include_str!("../src/conformance/time.rs")),
    (
        "transaction",
        include_str!("../src/conformance/transaction.rs"),
    ),
];

#[test]
fn every_clause_has_one_check_that_names_it() {
    let contract = contract();
    let mut checks = BTreeMap::new();
    for (_, source) in CHECKS {
        for (name, body) in public_functions(source) {
            let number = number_in(body, name);
            assert!(
                body.contains(&format!("\"{number} {name}\"")),
                "{name} is told wrongly"
            );
            assert_eq!(checks.insert(number, name), None, "{number} is there twice");
        }
    }
    let clauses: BTreeMap<_, _> = contract
        .iter()
        .map(|(number, _, name)| (*number, *name))
        .collect();
    assert_eq!(clauses.len(), contract.len());
    assert_eq!(checks, clauses);
    assert!(clauses.keys().copied().eq(1..=clauses.len()));
}

#[test]
fn the_macro_makes_a_test_of_every_clause_that_binds_the_kind() {
    macro_rules! push {
        ($group:ident::$clause:ident, $names:ident) => {
            $names.push((stringify!($group), stringify!($clause)));
        };
    }
    let (mut lease, mut transaction) = (Vec::new(), Vec::new());
    tower_idempotency::__conformance_clauses!(lease, [push] lease);
    tower_idempotency::__conformance_clauses!(transaction, [push] transaction);
    for (kind, made) in [("lease", lease), ("transaction", transaction)] {
        let bound = contract()
            .into_iter()
            .filter(|(_, binds, _)| [kind, "all"].contains(binds))
            .map(|(_, _, name)| name);
        let names: BTreeSet<_> = made.iter().map(|(_, name)| *name).collect();
        assert_eq!(names.len(), made.len(), "a {kind} test is made twice");
        assert_eq!(names, bound.collect());
    }
}

#[test]
fn the_clauses_of_a_listing_have_checks_and_tests_too() {
    macro_rules! push {
        ($group:ident::$clause:ident, $names:ident) => {
            $names.insert(stringify!($clause));
        };
    }
    let (mut lease, mut transaction) = (BTreeSet::new(), BTreeSet::new());
    tower_idempotency::__conformance_clauses!(lease_listing, [push] lease);
    tower_idempotency::__conformance_clauses!(transaction_listing, [push] transaction);
    let clause = |line: &'static str| {
        let (number, rest) = line.strip_prefix("/// - ")?.split_once(". *")?;
        let (kind, rest) = rest.split_once("* `")?;
        Some((number, kind, rest.split_once('`')?.0))
    };
    let clauses: Vec<_> = LISTING.lines().filter_map(clause).collect();
    let names = |kinds: &[&str]| -> BTreeSet<_> {
        let of_kind = clauses.iter().filter(|(_, kind, _)| kinds.contains(kind));
        of_kind.map(|(.., name)| *name).collect()
    };
    assert_eq!(lease, names(&["lease", "all"]));
    assert_eq!(transaction, names(&["all"]));
    let checks: Vec<_> = public_functions(LISTING_CHECKS).collect();
    assert_eq!(checks.len(), clauses.len());
    for ((number, _, name), (check, body)) in clauses.into_iter().zip(checks) {
        assert_eq!(check, name, "in the same order");
        assert!(body.contains(&format!("\"{number} {name}\"")), "{name}");
    }
}

#[test]
fn the_clauses_of_steps_have_checks_and_tests_too() {
    macro_rules! push {
        ($group:ident::$clause:ident, $names:ident) => {
            $names.extend([stringify!($clause)]);
        };
    }
    let mut made = Vec::new();
    tower_idempotency::__conformance_clauses!(steps, [push] made);
    let clause = |line: &'static str| {
        let (number, rest) = line.strip_prefix("/// - ")?.split_once(". `")?;
        Some((number, rest.split_once('`')?.0))
    };
    let clauses: Vec<_> = STEPS.lines().filter_map(clause).collect();
    assert!(clauses.iter().map(|(_, name)| *name).eq(made));
    let checks: Vec<_> = public_functions(STEPS_CHECKS).collect();
    assert_eq!(checks.len(), clauses.len());
    for (index, ((number, name), (check, body))) in clauses.into_iter().zip(checks).enumerate() {
        assert_eq!(number, format!("S{}", index + 1));
        assert_eq!(check, name, "in the same order");
        assert!(body.contains(&format!("\"{number} {name}\"")), "{name}");
    }
}

/// Number, kind and name of each clause: lines like `/// 1. *all* `name`: …` or, in the middle of one, `*lease* `name``.
fn contract() -> Vec<(usize, &'static str, &'static str)> {
    let clause = |line: &'static str| {
        let (number, rest) = line.strip_prefix("/// ")?.split_once(". *")?;
        let (kind, rest) = rest.split_once("* `")?;
        let (name, _) = rest.split_once('`')?;
        Some((number.parse().ok()?, kind, name))
    };
    CONTRACT.lines().filter_map(clause).collect()
}

/// Name and source of each public function.
fn public_functions(source: &str) -> impl Iterator<Item = (&str, &str)> {
    source
        .split("pub async fn ")
        .skip(1)
        .filter_map(|function| function.split_once('('))
}

fn number_in(body: &str, name: &str) -> usize {
    let (before, _) = body
        .split_once(&format!(" {name}\""))
        .expect("its own name");
    let (_, number) = before.rsplit_once('"').expect("a string");
    number.parse().expect("a number")
}
