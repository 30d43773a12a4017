#!/usr/bin/env bash
# Make the virtual environment FOLDER, with a pip that knows dependency groups.
#
#   scripts/make_venv.sh FOLDER
#
# Takes $PYTHON, or the first Python 3.11 or newer it finds. An environment that works is kept.
set -euo pipefail

venv=$1
recent='import sys; sys.exit(sys.version_info < (3, 11))'

usable() { "$1" -c "$recent" 2>/dev/null; }

if ! usable "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  candidates=(${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11})
  chosen='' without_venv=''
  for python in "${candidates[@]}"; do
    usable "$python" || continue
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      chosen=$python
      break
    fi
    without_venv=${without_venv:-$python}
  done
  if [[ -z $chosen && -n $without_venv ]]; then
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "Python $version is here, but not its venv module. On Debian and Ubuntu:" \
      "sudo apt-get install python$version-venv" >&2
    exit 3
  elif [[ -z $chosen ]]; then
    echo "gpuscope needs Python 3.11 or newer, which none of these is: ${candidates[*]}." \
      "On Debian 12, Ubuntu 24.04 and newer: sudo apt-get install python3 python3-venv;" \
      "one in another place: make demo PYTHON=/path/to/python3" >&2
    exit 3
  fi
  rm -rf "$venv"
  "$chosen" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
