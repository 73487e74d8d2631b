//! Comparing resource versions.

/// Whether `a` is certainly older than `b`.
///
/// Resource versions of one resource type can be compared as integers
/// ([API concepts](https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions), a guarantee since
/// 1.35, the practice of etcd-backed API servers long before). Where one is not an integer, nothing is certain.
pub(super) fn is_older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}
