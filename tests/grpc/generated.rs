//! The generated code that is checked in is what its `.proto` generates. To renew it: `REGENERATE=1 cargo test --test grpc`.

use std::{env, fs, path::Path};

fn assert_generated(proto: &str, file: &str) {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join(proto);
    let place = proto.parent().expect("a directory");
    let directory = tempfile::tempdir().expect("a directory");
    let descriptors = protox::compile([&proto], [place]).expect("a valid .proto");
    tonic_prost_build::configure()
        .out_dir(directory.path())
        .compile_fds(descriptors)
        .expect("generated code");
    let generated = fs::read_to_string(directory.path().join(file)).expect("the generated file");
    let checked_in = place.join(file);
    if env::var_os("REGENERATE").is_some() {
        fs::write(&checked_in, &generated).expect("written");
    }
    let found = fs::read_to_string(&checked_in).expect("the checked-in file");
    assert_eq!(found, generated, "{}", checked_in.display());
}

#[test]
fn the_code_of_the_example_is_what_its_proto_generates() {
    assert_generated("examples/grpc/payments.proto", "payments.v1.rs");
}

#[test]
fn the_code_of_these_tests_is_what_their_proto_generates() {
    assert_generated("tests/grpc/calls.proto", "calls.v1.rs");
}
