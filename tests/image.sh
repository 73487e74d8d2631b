#!/usr/bin/env bash
# Builds the image and runs what is in it as a container would: nothing but its files, its user, its entry point. It has to find names
# (in /etc/hosts and at a DNS server) and to talk TLS, by its own roots and by an operator's.
#
# Usage: tests/image.sh [amd64|arm64]; without an architecture: this machine's. Another one runs in QEMU.
# Installs skopeo (Debian), with which the image is read, and for another architecture QEMU. Needs root: for chroot(2), and for port 53 on
# loopback.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${CARGO_TARGET_DIR:-$PWD/target}/image
# Bytes: compressed, and of the binary.
most=12000000
most_of_binary=25000000
is_released=1
if [ "${PROFILE:-release}" != release ]; then
  echo "tests/image.sh: PROFILE=$PROFILE: NOT CHECKED is what only a released binary holds: sizes, no simulated worlds, no path of this machine"
  is_released= most=$((1 << 30)) most_of_binary=$((1 << 30))
fi

fail() {
  printf 'tests/image.sh: %s\n' "$*" >&2
  exit 1
}
[ "$(id -u)" -eq 0 ] || fail "run this as root"
install_tool() {
  command -v "$1" >/dev/null && return
  apt-get update -q
  apt-get install -y -q --no-install-recommends "$2"
}
install_tool skopeo skopeo

here=$(dpkg --print-architecture)
arch=${1:-$here}
emulator=()
if [ "$arch" != "$here" ]; then
  case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) fail "there is no architecture $arch: amd64 or arm64" ;;
  esac
  install_tool "qemu-$machine-static" qemu-user-static
  emulator=(/emulator)
fi
deploy/image/build.sh "$arch"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As somebody else reads it: every digest is checked on the way.
skopeo --override-arch "$arch" copy --quiet "oci-archive:$out/ebbtide.oci.tar" "dir:$work/image"
manifest=$work/image/manifest.json
field() { python3 -c "import json, sys; print(json.load(open(sys.argv[1]))$2)" "$1"; }
[ "$(field "$manifest" '["layers"].__len__()')" = 1 ] || fail "the image has more than one layer"
layer=$(field "$manifest" '["layers"][0]["digest"].removeprefix("sha256:")')
config=$(field "$manifest" '["config"]["digest"].removeprefix("sha256:")')
[ "$(field "$work/image/$config" '["config"]["User"]')" = 65532:65532 ] || fail "the image does not run as 65532"
[ "$(field "$work/image/$config" '["config"]["Entrypoint"]')" = "['/ebbtide']" ] || fail "the image starts something else"
[ "$(field "$work/image/$config" '["config"]["Env"]' | tr -d "[],'")" = "$(paste -sd ' ' deploy/image/environment)" ] ||
  fail "what is run in the image does not find the binary by its name, or keeps more memory than docs/performance.md says"
size=$(stat -c %s "$work/image/$layer")
[ "$size" -le "$most" ] || fail "$size bytes compressed, and $most are the most"

root=$work/root
mkdir "$root"
tar -xzf "$work/image/$layer" -C "$root"
(cd "$root" && find . -type f | sort) | diff - <(printf '%s\n' ./ebbtide ./etc/ssl/certs/ca-certificates.crt) ||
  fail "the image has other files than the binary and the roots"
binary=$(stat -c %s "$root/ebbtide")
[ "$binary" -le "$most_of_binary" ] || fail "the binary has $binary bytes, and $most_of_binary are the most"
if readelf -ld "$root/ebbtide" | grep -E 'INTERP|NEEDED'; then fail "the binary is not static"; fi
if [ "$is_released" ] && grep -aqF -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" "$root/ebbtide"; then
  fail "the binary has paths of this machine"
fi
[ ${#emulator[@]} -eq 0 ] || install -m 0755 "$(command -v "qemu-$machine-static")" "$root${emulator[0]}"
in_image() { chroot --userspec=65532:65532 "$root" "${emulator[@]}" /ebbtide "$@"; }
in_image --version
if [ "$is_released" ] && in_image simulate 2>/dev/null; then fail "the image has the simulated worlds"; fi

python3 tests/image.py "$root" "${emulator[@]}"
printf 'image for %s: %s bytes compressed, a binary of %s\n' "$arch" "$size" "$binary"
