#!/usr/bin/env bash
# Checks the alert rules and the dashboard's expressions with promtool, and runs the rules' unit tests. Where promtool is missing, takes it
# out of Debian's package into target/tools (nothing is installed or started).
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools/prometheus

promtool=$(command -v promtool || true)
if [ -z "$promtool" ]; then
  promtool=$tools/usr/bin/promtool
  if ! "$promtool" --version >/dev/null 2>&1; then
    mkdir -p "$tools"
    (
      cd "$tools"
      if ! apt-get download -q prometheus; then
        # The package lists are old, or there are none.
        if [ "$(id -u)" -ne 0 ]; then
          echo "promtool is missing: install it (Debian package prometheus), or run this as root" >&2
          exit 1
        fi
        apt-get update -q
        apt-get download -q prometheus
      fi
      dpkg --extract prometheus_*.deb .
      rm prometheus_*.deb
    )
  fi
fi
"$promtool" --version 2>&1 | head -n 1

"$promtool" check rules deploy/alerts/ebbtide.rules.yaml
"$promtool" test rules tests/monitoring/alerts.yaml

# promtool knows rules, so each expression of the dashboard becomes one.
panels=$(mktemp --suffix=.yaml)
trap 'rm -f "$panels"' EXIT
python3 - > "$panels" <<'PYTHON'
import json

panels = json.load(open("deploy/dashboards/ebbtide.json"))["panels"]
expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
assert expressions, "the dashboard asks for nothing"
rules = []
for number, expression in enumerate(expressions):
    expression = expression.replace("$__rate_interval", "5m").replace("$job", ".*")
    rules.append({"record": f"panel:{number}", "expr": expression})
# JSON is YAML.
print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
PYTHON
"$promtool" check rules "$panels"
