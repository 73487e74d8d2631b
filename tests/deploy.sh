#!/usr/bin/env bash
# Checks what is in deploy/: the chart with Helm's own renderer, the overlays with kubectl's, every object against the
# Kubernetes schemas, the one against the other, what is for AWS with cfn-lint and a parser of Terraform's language.
#
# Needs python3 with venv, and PyPI once: the virtual environment stays in the build directory. No cluster, no account, no
# build of the program: `cargo test` holds its flags against the README's table, and the checks go by that.
#
# tests/deploy.sh --write writes the tables and copies that are made from other files.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tests/deploy/requirements.txt
build="${CARGO_TARGET_DIR:-target}"
venv="$build/deploy-venv-$(cksum <"$requirements" | cut -d' ' -f1)"
if [ ! -e "$venv/ready" ]; then
    python3 -m venv "$venv"
    # Wheels only: what a source distribution needs to be built would come without a hash.
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$requirements"
    touch "$venv/ready"
fi
venv=$(cd "$venv" && pwd)

export PATH="$venv/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
if [ "${1:-}" = --write ]; then
    exec python tests/deploy/made.py
fi
exec python -m unittest discover --start-directory tests/deploy --pattern '*_test.py' "$@"
