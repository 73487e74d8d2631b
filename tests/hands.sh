#!/usr/bin/env bash
# Lays hands on the simulated worlds (`ebbtide simulate --listen`) with the real kubectl, the aws CLI and boto3, and runs each command
# of the documents on them.
#
# Needs python3 with venv, and PyPI once: the virtual environment stays in the build directory. Everything listens on free loopback
# ports and is stopped whatever happens.
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/venv.sh
venv=$(venv tests/hands/requirements.txt hands)
cargo build --locked --quiet
build=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)

# Nothing of the caller's own clusters, accounts and proxies gets in.
unset KUBECONFIG ${!AWS_@} ${!EBBTIDE_@} HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy
export PATH="$venv/bin:$build/debug:$PATH" PYTHONDONTWRITEBYTECODE=1
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_EC2_METADATA_DISABLED=true AWS_PAGER=
exec python -m unittest discover --start-directory tests/hands --pattern '*_test.py' "$@"
