#!/bin/sh
# Solve pyproject.toml into requirements/{cpu,gpu,dev,lock,outside}.txt: exact versions with hashes.
#
# Usage: scripts/lock.sh [--upgrade]
#
# Without --upgrade the versions already locked stay wherever pyproject.toml still allows them. The locks are for
# CPython 3.11 on x86_64 Linux (glibc 2.28 or later), the one platform that is tested. Needs the network; the solver
# has its own environment, so a broken lock can always be mended.
set -eu
umask 022
cd "$(dirname "$0")/.."
. scripts/python.sh

tools=.jubako/lock-tools
upgrade=${1:-}
case $upgrade in
    '' | --upgrade) ;;
    *)
        echo "lock: unknown argument '$upgrade' (only --upgrade is known)" >&2
        exit 2
        ;;
esac

wanted=$(sed -n 's/^lock = \["uv==\(.*\)"\]$/\1/p' pyproject.toml)
if ! "$tools/bin/uv" --version 2>/dev/null | grep -qF "uv $wanted "; then
    echo "lock: installing uv $wanted"
    rm -rf "$tools"
    "$(find_python)" -m venv "$tools"
    if grep -qF "uv==$wanted " requirements/lock.txt 2>/dev/null; then
        "$tools/bin/python" -m pip install -qq --no-deps --require-hashes -r requirements/lock.txt
    else # a new version of the solver: its hashes are about to be written
        "$tools/bin/python" -m pip install -qq --no-deps "uv==$wanted"
    fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# solve NAME OPTION...: writes $work/NAME.txt, starting from what it already holds.
solve() {
    name=$1
    shift
    echo "lock: $name"
    UV_CUSTOM_COMPILE_COMMAND='make lock' "$tools/bin/uv" pip compile "$@" \
        --quiet --no-config --generate-hashes --no-emit-index-url --no-annotate \
        --python "$tools/bin/python" --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --output-file "$work/$name.txt" >/dev/null
}

for name in cpu dev lock outside; do
    if [ -z "$upgrade" ] && [ -e "requirements/$name.txt" ]; then
        cp "requirements/$name.txt" "$work/$name.txt"
    fi
done
solve cpu pyproject.toml --extra cpu --group torch-needs --excludes requirements/not-locked.txt

# The GPU build has stricter needs in places, so the CPU's versions are where its solver starts, not what it is held to.
cp "$work/cpu.txt" "$work/gpu.txt"
if [ -z "$upgrade" ] && [ -e requirements/gpu.txt ]; then
    cat requirements/gpu.txt >>"$work/gpu.txt"
fi
solve gpu pyproject.toml --extra gpu

# Development tools go on top of either, and must not want other versions of what they share.
solve dev --group dev --constraints "$work/cpu.txt"
solve lock --group lock
solve outside --group outside --group torch-needs --excludes requirements/not-locked.txt

for name in cpu gpu dev lock outside; do
    mv "$work/$name.txt" "requirements/$name.txt"
done
echo "lock: done; 'make setup' installs it"
