//! Compiles the protocols in pure Rust. Cluster-autoscaler's, of providers and of expanders: messages, server and client, and the descriptors that
//! reflection serves. Of collectors of traces: messages and client.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let traces = protox::compile(["proto/otlp.proto"], ["proto"])?;
    let is_simulated = env::var_os("CARGO_FEATURE_SIMULATE").is_some();
    // Tests have a collector.
    tonic_prost_build::configure().build_server(is_simulated).compile_fds(traces)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let protocol = |name: &str| {
        let mut compiler = protox::Compiler::new(["proto"])?;
        compiler.include_imports(true).include_source_info(true).open_file(format!("{name}.proto"))?;
        fs::write(out.join(format!("{name}.bin")), compiler.encode_file_descriptor_set())?;
        Ok::<_, Box<dyn Error>>(compiler.file_descriptor_set())
    };
    let builder = || {
        tonic_prost_build::configure()
            // The worlds and the tests have clients.
            .build_client(is_simulated)
            // Sorted maps make encodings repeatable, and a template is shared rather than copied for each answer.
            .btree_map(".")
            .bytes(".")
    };
    builder()
        // What is listed of a group is encoded once for many answers.
        .extern_path(
            ".clusterautoscaler.cloudprovider.v1.externalgrpc.NodeGroupNodesResponse",
            "crate::provider::wire::NodeGroupNodesResponse",
        )
        .compile_fds(protocol("externalgrpc")?)?;
    builder()
        .codec_path("crate::provider::expander::codec::BoundedCodec")
        .compile_fds(protocol("expander")?)?;
    Ok(())
}
