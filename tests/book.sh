#!/usr/bin/env bash
# Builds the site of docs/ into target/book/site, and checks every link of the documents and of the site: files and headings; those that
# lead elsewhere by their form only, as nothing is fetched.
#
# Needs git, python3 and a Rust toolchain: mdBook is built once, into target/tools, without what serves and searches (--prepare: only that).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1

. tests/tool.sh
mdbook=$(tool mdbook 0.5.4 --no-default-features)
if [ "${1:-}" = --prepare ]; then exit; fi

# As book.toml has it.
rm -rf target/book
python3 tests/book.py stage target/book/source
"$mdbook" build 2>&1 | tee target/book/log
if grep -qE 'WARN|ERROR' target/book/log; then
    echo "mdBook warns" >&2
    exit 1
fi
python3 tests/book.py links
python3 tests/book.py check target/book/site
echo "every link leads somewhere: target/book/site/index.html"
