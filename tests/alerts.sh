#!/usr/bin/env bash
# Checks the alert rules and the dashboard's expressions with promtool, and runs the rules' unit tests.
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/prometheus.sh
promtool=$(of_prometheus promtool)
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
