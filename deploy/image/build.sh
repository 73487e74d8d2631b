#!/usr/bin/env bash
# Builds the image: one static binary on an empty base, and the roots of public certificate authorities. Into target/image:
#
#   ebbtide.oci.tar          the image (OCI archive, all architectures): podman load, skopeo copy oci-archive:…
#   ebbtide-ARCH             the binaries
#   ebbtide.cdx.json         what is in them (CycloneDX)
#   SHA256SUMS               of all these
#
# Usage: deploy/image/build.sh [amd64|arm64]…; without an architecture: this machine's. Needs the Rust toolchain, a C compiler and Python 3. For
# another architecture than this machine's also `rustup target add` and a C cross compiler (Debian: gcc-aarch64-linux-gnu and
# libc6-dev-arm64-cross, or gcc-x86-64-linux-gnu and libc6-dev-amd64-cross). PROFILE=dev links what `cargo test` has compiled, the simulated
# worlds included, for this machine's architecture: to try all else in a minute.
#
# The same commit, toolchain, C compiler and glibc (2.34 or newer, with which a static binary resolves names by itself) give the same bytes,
# wherever the clone is.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$PWD/target}
out=$target/image
profile=${PROFILE:-release}
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# Roots of public authorities; the image of an operator with an own one mounts it and sets SSL_CERT_FILE.
roots=${CA_CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

fail() {
  printf 'deploy/image/build.sh: %s\n' "$*" >&2
  exit 1
}
[ -s "$roots" ] || fail "$roots is missing: install ca-certificates, or name another bundle in CA_CERTIFICATES"

case $(uname -m) in
  x86_64) here=amd64 ;;
  aarch64) here=arm64 ;;
  *) here=none ;;
esac
if [ $# -eq 0 ]; then set -- "$here"; fi

# No path of this machine in what is built. The last that fits counts, and the target folder may be in the clone.
remap="--remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$PWD=/ebbtide --remap-path-prefix=$target=/target"
prefixes="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/ebbtide -ffile-prefix-map=$target=/target"

mkdir -p "$out"
for arch in "$@"; do
  case $arch in
    amd64) triple=x86_64-unknown-linux-gnu ;;
    arm64) triple=aarch64-unknown-linux-gnu ;;
    *) fail "there is no architecture $arch: amd64 or arm64" ;;
  esac
  [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || fail "for $arch: rustup target add $triple"
  variable=$(printf %s "$triple" | tr a-z- A-Z_)
  if [ "$arch" != "$here" ]; then
    cross=${triple/-unknown/}-gcc
    command -v "$cross" >/dev/null || fail "for $arch: $cross is missing (Debian: gcc-${cross%-gcc} and libc6-dev-$arch-cross)"
    export "CARGO_TARGET_${variable}_LINKER=$cross"
  fi
  if [ "$profile" = dev ]; then
    [ "$arch" = "$here" ] || fail "PROFILE=dev is for this machine's architecture"
    # Without what some crates are built anew for.
    env -u SOURCE_DATE_EPOCH cargo rustc --locked --bin ebbtide -- -C target-feature=+crt-static
    install -m 0755 "$target/debug/ebbtide" "$out/ebbtide-$arch"
    continue
  fi
  # For this target alone: build scripts and macros run here, and stay as they are.
  env "CARGO_TARGET_${variable}_RUSTFLAGS=-C target-feature=+crt-static $remap" "CFLAGS_${triple//-/_}=$prefixes" \
    cargo build --profile "$profile" --locked --no-default-features --target "$triple"
  install -m 0755 "$target/$triple/$profile/ebbtide" "$out/ebbtide-$arch"
done

deploy/image/sbom.py > "$out/ebbtide.cdx.json"
deploy/image/oci.py "$out" "$roots" "$@"
(cd "$out" && sha256sum $(printf 'ebbtide-%s ' "$@") ebbtide.oci.tar ebbtide.cdx.json > SHA256SUMS && cat SHA256SUMS)
