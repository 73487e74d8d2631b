# Sourced. `venv REQUIREMENTS NAME` makes a virtual environment with exactly these packages in the build directory, once, and prints
# where it is.
venv() {
    local made
    made="${CARGO_TARGET_DIR:-target}/$2-venv-$(cksum <"$1" | cut -d' ' -f1)"
    if [ ! -e "$made/ready" ]; then
        python3 -m venv "$made" || return
        # Wheels only: what a source distribution needs to be built would come without a hash.
        "$made/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$1" >&2 || return
        touch "$made/ready"
    fi
    (cd "$made" && pwd)
}
