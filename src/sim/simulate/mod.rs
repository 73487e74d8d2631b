//! `ebbtide simulate`.
/// Stub.
pub fn run(_s: &crate::config::Simulate) -> anyhow::Result<bool> {
    Ok(true)
}
