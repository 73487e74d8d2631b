#!/usr/bin/env bash
# Checks what is in deploy/: the chart with Helm's own renderer, the overlays with kubectl's, every object against the
# Kubernetes schemas, the one against the other, what is for AWS with cfn-lint and a parser of Terraform's language.
#
# Needs python3 with venv, and PyPI once: the virtual environment stays in the build directory. No cluster, no account, no
# build of the program: `cargo test` holds its flags against the table in docs/flags.md, and the checks go by that.
#
# tests/deploy.sh --write writes the tables and copies that are made from other files.
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/venv.sh
venv=$(venv tests/deploy/requirements.txt deploy)

export PATH="$venv/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
if [ "${1:-}" = --write ]; then
    exec python tests/deploy/made.py
fi
exec python -m unittest discover --start-directory tests/deploy --pattern '*_test.py' "$@"
