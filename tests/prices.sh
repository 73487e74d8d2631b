#!/usr/bin/env bash
# Makes the table of prices once more from what its source says, and compares.
#
# Needs python3 with venv and pip, and PyPI: nothing of the wheels is run, their prices are read.
set -euo pipefail
cd "$(dirname "$0")/.."

table=src/prices/prices.tsv
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

python3 -m venv "$made/venv"
dumps=()
while read -r wheel; do
    echo "$wheel" >"$made/wheel.txt"
    folder="$made/${#dumps[@]}"
    "$made/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        --dest "$folder" -r "$made/wheel.txt" >&2
    (cd "$folder" && python3 -m zipfile -e ./*.whl .)
    dumps+=("$folder/libcloud/data/pricing.json")
done < <(grep -v '^#' tests/prices/wheels.txt)

source=$(sed -n 's/^# Source: //p' "$table")
date=$(sed -n 's/^# Date: //p' "$table")
cargo run --locked --quiet --example prices -- "$made/table.tsv" "$source" "$date" "${dumps[@]}"
if ! diff "$table" "$made/table.tsv" >"$made/diff"; then
    echo "$table is not what its source has:" >&2
    head -20 "$made/diff" | cut -c1-200 >&2
    exit 1
fi
echo "$table is what its source has"
