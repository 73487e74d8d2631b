#!/usr/bin/env bash
# Builds the image here and in a clone of HEAD in another folder, and fails unless both are the same to the byte. Takes two release builds.
# Usage: deploy/image/reproduce.sh [amd64|arm64]…
set -euo pipefail
cd "$(dirname "$0")/../.."
git diff --quiet HEAD || { echo "deploy/image/reproduce.sh: commit first, what is compared is HEAD" >&2; exit 1; }
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
git clone --quiet --no-hardlinks . "$elsewhere/clone"
deploy/image/build.sh "$@"
(unset CARGO_TARGET_DIR && "$elsewhere/clone/deploy/image/build.sh" "$@")
diff "${CARGO_TARGET_DIR:-$PWD/target}/image/SHA256SUMS" "$elsewhere/clone/target/image/SHA256SUMS"
echo "the same bytes"
