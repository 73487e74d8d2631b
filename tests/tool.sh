# Sourced. `tool NAME VERSION [FLAG...]` prints where this version of a program of crates.io is: compiled once, into the build directory.
tool() {
    local name=$1 version=$2 made
    shift 2
    made="${CARGO_TARGET_DIR:-target}/tools/$name-$version"
    if [ ! -x "$made/bin/$name" ]; then
        # In a folder of its own: nobody else waits for it. Its debug information would be gigabytes.
        CARGO_PROFILE_DEV_DEBUG=0 cargo install "$name" --version "$version" --locked --quiet --debug "$@" --root "$made" --target-dir "$made/build" >&2 || return
        rm -rf "$made/build"
    fi
    (cd "$made/bin" && printf '%s\n' "$PWD/$name")
}
