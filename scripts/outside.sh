#!/bin/sh
# Make build/outside-venv hold the tool of `make bench-outside`, exactly as its lock says.
#
# Usage: scripts/outside.sh       (PYTHON=/path/to/python3.11 to choose the interpreter)
#
# An environment of its own: the tool wants other versions than what it measures, and a measured server must not depend
# on what measures it. Made anew when it is not of this lock, or was not finished.
set -eu
umask 022
cd "$(dirname "$0")/.."
. scripts/python.sh

venv=build/outside-venv
stamp=$venv/.complete
wanted="$PWD $(cat requirements/outside.txt requirements/torch-cpu.txt scripts/outside.sh | sha256sum | cut -d' ' -f1)"

if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

echo "outside: making $venv ($(grep '^guidellm==' requirements/outside.txt | cut -d' ' -f1); 1.5 GB, some minutes)"
mkdir -p build
rm -rf "$venv"
"$(find_python)" -m venv "$venv"
sh scripts/torch.sh "$venv/bin/python" -m pip install -qq --disable-pip-version-check
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/outside.txt
echo "$wanted" >"$stamp"
