#!/bin/sh
# Make .venv hold exactly what the locks say, and this project in editable form.
#
# Usage: scripts/setup.sh [cpu|gpu]      (PYTHON=/path/to/python3.11 to choose the interpreter)
#
# Without a profile, that of the environment that is there or was begun; cpu if there is none.
#
# Safe to run at any time, by several processes at once, and again after an interruption. When there is nothing to do it
# takes a few hundredths of a second. Knows nothing of models or configuration.
set -eu
umask 022
cd "$(dirname "$0")/.."
. scripts/python.sh

venv=.venv
python=$venv/bin/python
stamp=$venv/.jubako-setup
started=.jubako/setup-started

profile=${1:-}
if [ -n "$profile" ]; then
    :
elif [ -s "$started" ]; then
    read -r profile <"$started"
elif [ -s "$stamp" ]; then
    read -r _ profile _ <"$stamp"
else
    profile=cpu
fi
case $profile in
    cpu | gpu) ;;
    *)
        echo "setup: unknown profile '$profile'; it is cpu or gpu" >&2
        exit 2
        ;;
esac

digest() { cat "$@" | sha256sum | cut -d' ' -f1; }

# Two lines, because they go stale differently: with other locks the environment is built anew, so that it never holds
# what no lock names; with another pyproject.toml only the project itself is installed again. The folder belongs to the
# first: an environment cannot be moved.
packages="packages $profile $PWD $(digest "requirements/$profile.txt" requirements/torch-cpu.txt requirements/dev.txt)"
project="project $(digest pyproject.toml scripts/setup.sh)"

up_to_date() { [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$packages
$project" ]; }

if up_to_date; then exit 0; fi

# One setup at a time; who comes second finds the work done.
mkdir -p .jubako
if command -v flock >/dev/null 2>&1; then
    exec 9>.jubako/setup.lock
    if ! flock -n 9; then
        echo 'setup: waiting for another setup to finish'
        flock 9
        exec sh scripts/setup.sh "$@" # what was true before the wait need not be now
    fi
fi

say() { echo "setup: $*"; }

# On a terminal pip shows its own progress; elsewhere one line a stage is enough, and errors are still shown.
if [ -t 1 ]; then quiet=''; else quiet=-qq; fi
pip_install() { "$python" -m pip install --disable-pip-version-check --no-deps "$@" 9>&-; }

# What was cut off in the middle of an installation cannot be trusted: pip takes a half-installed package for a whole one.
if [ -e "$started" ]; then
    say 'the last setup did not finish; starting again'
elif [ -e "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$packages" ] && is_python311 "$python"; then
    packages_done=yes
elif [ -e "$stamp" ]; then
    say 'the locks, the folder or Python have changed; starting again'
elif [ -e "$venv" ]; then
    say "there is a $venv that this script did not make; move it away, or remove it with 'make clean'" >&2
    exit 1
fi
if [ -z "${packages_done:-}" ]; then base=$(find_python); fi

failed() {
    code=$?
    [ $code -eq 0 ] || say "failed or interrupted; run it again to go on (what was downloaded is kept in pip's cache)" >&2
}
trap failed EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ -z "${packages_done:-}" ]; then
    echo "$profile" >"$started"
    rm -rf "$venv"
    say "making $venv with $base"
    "$base" -m venv "$venv"

    if [ "$profile" = cpu ]; then
        say "installing $(grep '^torch==' requirements/torch-cpu.txt)"
        # shellcheck disable=SC2086 # $quiet is one option or none
        sh scripts/torch.sh "$python" -m pip install $quiet --disable-pip-version-check 9>&-
    fi

    count=$(cat "requirements/$profile.txt" requirements/dev.txt | grep '^[^#[:space:]]' | sort -u | wc -l)
    say "installing $count packages (1 to 3 minutes, and the time to download them)"
    # shellcheck disable=SC2086 # $quiet is one option or none
    pip_install $quiet --require-hashes -r "requirements/$profile.txt" -r requirements/dev.txt
    echo "$packages" >"$stamp"
    rm -f "$started"
fi

say 'installing this project'
pip_install -qq --no-build-isolation --no-index --editable .

printf '%s\n%s\n' "$packages" "$project" >"$stamp.new"
mv "$stamp.new" "$stamp"
say 'done'
