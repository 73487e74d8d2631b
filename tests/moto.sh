#!/usr/bin/env bash
# Runs tests/moto/ against moto's server (https://github.com/getmoto/moto), an AWS that nobody here wrote, and makes the
# table of instance types once more from moto's.
#
# Needs python3 with venv, and PyPI once: the virtual environment stays in the build directory. The server listens on a
# free loopback port and is stopped whatever happens. Ends with the tests' status.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tests/moto/requirements.txt
version=$(sed -n 's/^moto==\([0-9.]*\).*/\1/p' "$requirements")
build="${CARGO_TARGET_DIR:-target}"
. tests/venv.sh
venv=$(venv "$requirements" moto)

# The table of instance types is what its program makes of moto's, which is EC2's.
table=src/aws/instance-types.tsv
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$venv/bin/python" - "$made" <<'PYTHON'
import gzip, json, sys, moto.ec2
types = json.load(gzip.open(moto.ec2.__path__[0] + "/resources/instance_types.json.gz"))
json.dump(types, open(sys.argv[1] + "/map.json", "w"))
json.dump({"InstanceTypes": list(types.values())}, open(sys.argv[1] + "/list.json", "w"))
PYTHON
source=$(sed -n 's/^# Source: //p' "$table")
for form in map list; do
    cargo run --locked --quiet --example instance-types -- "$made/$form.json" "$made/table.tsv" "$source"
    if ! diff "$table" "$made/table.tsv" >"$made/diff"; then
        echo "$table is not what moto $version has ($form):" >&2
        head -20 "$made/diff" >&2
        exit 1
    fi
done

# Built first, so that the server does not wait for the compiler.
cargo test --locked --quiet --test moto --no-run

port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
log="$build/moto-$port.log"
"$venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$log" "$made"' EXIT

for _ in $(seq 100); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then up=yes; break; fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.2
done
if [ "${up:-no}" != yes ]; then
    echo "moto did not come up:" >&2
    cat "$log" >&2
    exit 1
fi

# No proxy and no certificates of the caller's between us and the loopback interface.
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy AWS_CA_BUNDLE SSL_CERT_FILE SSL_CERT_DIR
export NO_PROXY='*' no_proxy='*'
export EBBTIDE_MOTO_ENDPOINT="http://127.0.0.1:$port"
# Made up; and nothing of the caller's own AWS configuration gets in.
export AWS_ACCESS_KEY_ID=moto AWS_SECRET_ACCESS_KEY=moto AWS_EC2_METADATA_DISABLED=true
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_AUTO_SCALING AWS_ENDPOINT_URL_EC2 AWS_ENDPOINT_URL_EKS AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2 AWS_ENDPOINT_URL_SQS AWS_REGION
cargo test --locked --test moto -- --ignored "$@"
