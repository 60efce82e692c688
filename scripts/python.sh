# shellcheck shell=sh
# Sourced. find_python prints the path of a Python 3.11 that can make virtual environments, or says what is missing.

is_python311() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3.11 python3 python}; do
        if command -v "$candidate" >/dev/null 2>&1 && is_python311 "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    {
        if [ -n "${PYTHON:-}" ]; then
            echo "Jubako needs Python 3.11 with venv and pip; PYTHON=$PYTHON is not one."
        else
            echo "Jubako needs Python 3.11 with venv and pip; none was found on the PATH."
        fi
        echo "Install it (Debian, Ubuntu: apt-get install python3.11 python3.11-venv; elsewhere: pyenv install 3.11),"
        echo "or name it: make setup PYTHON=/path/to/python3.11"
    } >&2
    return 1
}
