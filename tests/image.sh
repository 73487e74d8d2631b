#!/usr/bin/env bash
# Builds the image and runs what is in it as a container would: nothing but its files, its user, its entry point. It has to find names
# (in /etc/hosts and at a DNS server) and to talk TLS, by its own roots and by an operator's.
# Installs skopeo (Debian), with which the image is read. Needs root: for chroot(2), and for port 53 on loopback.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${CARGO_TARGET_DIR:-$PWD/target}/image
most=20000000

fail() {
  printf 'tests/image.sh: %s\n' "$*" >&2
  exit 1
}
[ "$(id -u)" -eq 0 ] || fail "run this as root"
if ! command -v skopeo >/dev/null; then
  apt-get update -q
  apt-get install -y -q --no-install-recommends skopeo
fi

deploy/image/build.sh
arch=$(dpkg --print-architecture)
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
[ "$(field "$work/image/$config" '["config"]["Env"]')" = "['PATH=/']" ] || fail "what is run in the image does not find the binary by its name"
size=$(stat -c %s "$work/image/$layer")
[ "$size" -le "$most" ] || fail "$size bytes compressed, and $most are the most"

root=$work/root
mkdir "$root"
tar -xzf "$work/image/$layer" -C "$root"
(cd "$root" && find . -type f | sort) | diff - <(printf '%s\n' ./ebbtide ./etc/ssl/certs/ca-certificates.crt) ||
  fail "the image has other files than the binary and the roots"
if readelf -ld "$root/ebbtide" | grep -E 'INTERP|NEEDED'; then fail "the binary is not static"; fi
if grep -aqF -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" "$root/ebbtide"; then fail "the binary has paths of this machine"; fi
in_image() { chroot --userspec=65532:65532 "$root" /ebbtide "$@"; }
in_image --version
if in_image simulate 2>/dev/null; then fail "the image has the simulated worlds"; fi

python3 tests/image.py "$root"
printf 'image: %s bytes compressed\n' "$size"
