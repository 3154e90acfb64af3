#!/bin/sh
# Finds a Python that Holdfast runs on and lets it bring `.venv` up to date: bootstrap.sh local|dev
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# A command of that name is not enough: version managers and stripped-down systems have some that do not run.
for python in "$here/../../.venv/bin/python" python3.13 python3.12 python3.11 python3 /usr/bin/python3 python; do
    if "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" "$here/bootstrap.py" "$@"
    fi
done
echo "Holdfast needs Python 3.11 or newer with its standard library (on Debian: apt-get install python3)." >&2
exit 1
