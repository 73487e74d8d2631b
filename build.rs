//! Compiles the protocols in pure Rust. Cluster-autoscaler's, of providers and of expanders: messages, server and client, and the descriptors that reflection serves.
//! Of collectors of traces: messages and client.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let traces = protox::compile(["proto/otlp.proto"], ["proto"])?;
    let is_simulated = env::var_os("CARGO_FEATURE_SIMULATE").is_some();
    // Tests have a collector.
    tonic_prost_build::configure().build_server(is_simulated).compile_fds(traces)?;
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(["externalgrpc.proto", "expander.proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("externalgrpc.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        // The worlds and the tests have clients.
        .build_client(is_simulated)
        // Sorted maps make encodings repeatable, and a template is shared rather than copied for each answer.
        .btree_map(".")
        .bytes(".")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
