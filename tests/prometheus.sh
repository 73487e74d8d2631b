# Sourced. `of_prometheus PROGRAM` prints where promtool or prometheus is: on the PATH, or taken out of Debian's package into target/tools
# (nothing is installed or started).
of_prometheus() {
  local tools found
  tools=${CARGO_TARGET_DIR:-$PWD/target}/tools/prometheus
  found=$(type -P "$1" || true)
  if [ -z "$found" ]; then
    found=$tools/usr/bin/$1
    if ! "$found" --version >/dev/null 2>&1; then
      mkdir -p "$tools"
      (
        cd "$tools"
        if ! apt-get download -q prometheus; then
          # The package lists are old, or there are none.
          if [ "$(id -u)" -ne 0 ]; then
            echo "$1 is missing: install it (Debian package prometheus), or run this as root" >&2
            exit 1
          fi
          apt-get update -q
          apt-get download -q prometheus
        fi
        dpkg --extract prometheus_*.deb .
        rm prometheus_*.deb
      ) >&2
    fi
  fi
  printf '%s\n' "$found"
}
