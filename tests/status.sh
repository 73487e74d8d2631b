#!/usr/bin/env bash
# Opens the status page of a simulated world in Chromium: asserts on what the browser makes of it, in light, dark and at a
# phone's width, and makes the pictures in docs/images when asked to (tests/status.sh --pictures).
#
# Needs chromium on the PATH (Debian: apt-get install chromium). The worlds listen on free loopback ports and are stopped whatever
# happens.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --quiet
build="${CARGO_TARGET_DIR:-target}"
made=$(mktemp -d)
"$build/debug/ebbtide" simulate --listen "$made/worlds" >"$made/told" 2>"$made/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$made"' EXIT
for _ in $(seq 300); do
    grep -q '^Ctrl-C' "$made/told" && break
    kill -0 "$server" 2>/dev/null || { echo "the worlds ended:" >&2; cat "$made/log" >&2; exit 1; }
    sleep 0.2
done
url=$(grep -o 'http://[^ ,]*/status' "$made/told") || { echo "the worlds did not come up" >&2; exit 1; }

browser() {
    env -u HTTP_PROXY -u HTTPS_PROXY -u http_proxy -u https_proxy timeout 60 chromium --headless --no-sandbox --disable-gpu \
        --hide-scrollbars --no-first-run --disable-dev-shm-usage --user-data-dir="$made/profile" "$@" 2>"$made/browser" \
        || { cat "$made/browser" >&2; exit 1; }
}

browser --virtual-time-budget=8000 --dump-dom "$url" >"$made/dom"
has() {
    grep -qF -- "$1" "$made/dom" || { echo "not on the page: $1" >&2; cat "$made/dom" >&2; exit 1; }
}
has '<section id="under-way"><h2>Scale-ins under way <small>1</small>'
has 'budget default/checkout'
has 'asked not to be disturbed'
has 'default/training'
has '<section id="ended"><h2>Ended <small>1</small>'
has 'released'
has 'm5.large: cpu'
has '<svg class="timeline"'
has '<p id="lost" hidden="">'

pictures="$made"
[ "${1:-}" = --pictures ] && pictures=docs/images && mkdir -p "$pictures"
browser --window-size=1180,900 --screenshot="$pictures/status-light.png" "$url"
browser --window-size=1180,900 --blink-settings=preferredColorScheme=0 --screenshot="$pictures/status-dark.png" "$url"
browser --window-size=500,1500 --screenshot="$pictures/status-phone.png" "$url"
for picture in light dark phone; do
    [ -s "$pictures/status-$picture.png" ] || { echo "no picture: $picture" >&2; exit 1; }
done
echo "the status page is what it should be"
