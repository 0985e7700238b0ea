#!/bin/sh
# Creates .venv with the pinned packages of constraints.txt. Run by `make setup`; safe to run again.
set -eu
cd "$(dirname "$0")/.."

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c \
            'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11 to 3.13 found; on Debian: apt-get install python3 python3-venv" >&2
    exit 1
}

python=$(find_python)
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    # Debian splits the venv module's pip off into a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -q && apt-get install -qy python3-venv
    else
        echo "setup: $python cannot create virtual environments; on Debian: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "setup: installing the packages of constraints.txt into .venv (some minutes on first use)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[tf,torch,zoo,s3,docs,dev]'
# tf_keras asks for the package tensorflow, which would overwrite parts of tensorflow-cpu: it comes without its needs.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps tf_keras
# timm asks for torchvision, whose wheels are for one torch each; its models need none of it (benchmarks/zoo).
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps timm
touch .venv/.complete
