#!/usr/bin/env bash
# Plays an hour of a simulated world, puts what its metrics told into a Prometheus, and asks it what the dashboard asks: every query has an
# answer, and the panels of scale-ins show them. tests/dashboard.sh --pictures draws the answers in the dashboard's layout, with
# what Grafana draws with (uPlot, from npm), and makes the pictures in docs/images. It is no picture of Grafana itself.
#
# Needs python3; for pictures npm and chromium as well. Prometheus is taken from Debian's package. It listens on a free loopback port and is
# stopped whatever happens.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/prometheus.sh
build=${CARGO_TARGET_DIR:-target}
export PYTHONDONTWRITEBYTECODE=1
unset HTTP_PROXY http_proxy ALL_PROXY all_proxy
promtool=$(of_prometheus promtool)
server_binary=$(of_prometheus prometheus)

cargo build --locked --quiet --example dashboard
made=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    rm -rf "$made"
}
trap stop EXIT
"$build/debug/examples/dashboard" >"$made/pages"
python3 tests/dashboard/show.py openmetrics <"$made/pages" >"$made/metrics"
"$promtool" tsdb create-blocks-from openmetrics "$made/metrics" "$made/data" >"$made/blocks"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
echo '{}' >"$made/prometheus.yml"
# A Prometheus that scrapes notes when a series ends; blocks have no such notes, so that a look back of one page stands in.
"$server_binary" --query.lookback-delta=16s --config.file="$made/prometheus.yml" --storage.tsdb.path="$made/data" --storage.tsdb.retention.time=100y \
    --web.listen-address="127.0.0.1:$port" >"$made/log" 2>&1 &
server=$!
for _ in $(seq 150); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    kill -0 "$server" 2>/dev/null || { cat "$made/log" >&2; exit 1; }
    sleep 0.2
done
python3 tests/dashboard/show.py ask "http://127.0.0.1:$port" "$made/pages" >"$made/answers.json"

if [ "${1:-}" = --pictures ]; then
    # The version, and what its package has to be.
    npm pack --silent --pack-destination "$made" uplot@1.6.32 >/dev/null
    digest=$(openssl dgst -sha512 -binary "$made/uplot-1.6.32.tgz" | base64 -w0)
    [ "$digest" = KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw== ] || {
        echo "uplot is not what it was" >&2
        exit 1
    }
    tar -xzf "$made/uplot-1.6.32.tgz" -C "$made"
    for theme in light dark; do
        python3 tests/dashboard/show.py page "$theme" "$made/package/dist" <"$made/answers.json" >"$made/$theme.html"
        timeout 90 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage \
            --user-data-dir="$made/profile" --virtual-time-budget=5000 --window-size=1400,1490 \
            --screenshot="$PWD/docs/images/dashboard-$theme.png" "file://$made/$theme.html" 2>"$made/chromium" || {
            cat "$made/chromium" >&2
            exit 1
        }
    done
fi
echo "every panel of the dashboard has its answer"
