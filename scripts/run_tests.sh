#!/usr/bin/env bash
# Runs the tests that this machine can run: all suites, or the ones that are named, two at a time.
# What follows -- goes to pytest:
#
#   scripts/run_tests.sh
#   scripts/run_tests.sh unit ops -- -k views
#
# noxfile.py has the suites and says what each is; this sets up nox and calls it.
set -euo pipefail

project=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${TORCHFORK_PYTHON:-${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/}python3}
tools=$project/.torchfork/nox
requirements=$project/scripts/requirements-nox.txt

suites=() count='all suites'
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      sed -n '3,/^"""/{/^"""/d;p}' "$project/noxfile.py"
      exit 0
      ;;
    --) break ;;
    *)
      if ! grep -qx "def $1(session: nox.Session) -> None:" "$project/noxfile.py"; then
        printf "error: there is no suite '%s'\nnext:  scripts/run_tests.sh --help lists them\n" "$1" >&2
        exit 2
      fi
      suites+=("$1")
      shift
      ;;
  esac
done
if ((${#suites[@]})); then count="${#suites[@]} of the suites"; fi

key=$(printf '%s\n' "$python" | cat - "$requirements" | cksum)
if [[ ! -f $tools/key || $(<"$tools/key") != "$key" ]]; then
  rm -rf -- "$tools"
  "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
  printf '%s\n' "$key" >"$tools/key"
fi
nox=("$tools/bin/nox" --noxfile "$project/noxfile.py")
if ((${#suites[@]} == 0)); then
  mapfile -t suites < <("${nox[@]}" --list | sed -n 's/^\* \([a-z]*\).*/\1/p')
fi
if ((${#suites[@]} == 1)); then
  "${nox[@]}" --session "${suites[0]}" "$@"
else
  # Two at a time: each has stretches that keep one core busy. After a failure none is begun.
  # shellcheck disable=SC2016 # bash -c expands them
  printf '%s\n' "${suites[@]}" | xargs -P 2 -I @suite bash -c '
    set -o pipefail
    "${@:2}" 2>&1 | sed -u "s/^/$1 | /" || exit 255
  ' suite @suite "${nox[@]}" --session @suite "$@" || exit 1
fi
printf 'passed: %s\n' "$count"
