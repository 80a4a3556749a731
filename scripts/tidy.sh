#!/usr/bin/env bash
# Runs clang-tidy-14 over the lines that are not as in COMMIT: by default where the branch left origin/main, or the last
# commit but one. Fails on any finding. Configures build/tidy, builds nothing.
#
#   scripts/tidy.sh [COMMIT]
#   scripts/tidy.sh --all [FILE…]      all lines of all files, or of those
#   TIDY_FILES=20 scripts/tidy.sh      20 changed files at most; says which are left out
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-tidy-14 >/dev/null || {
  echo "tidy.sh: clang-tidy-14 is not installed" >&2
  exit 1
}
export CMAKE_CXX_COMPILER_LAUNCHER="" # none that tidy would take for the compiler
# With the fuzzers: without their flags, their includes are not found.
cmake -B build/tidy -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DRESHARD_BUILD_FUZZERS=ON >/dev/null

if [[ "${1:-}" == --all ]]; then
  shift
  files=("$@")
  (($#)) || mapfile -t files < <(git ls-files 'lib/*.cpp' 'apps/*.cpp' 'tests/*.cpp')
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/tidy --quiet --warnings-as-errors='*'
  exit
fi

if (($#)); then
  base=$(git rev-parse --verify --quiet "$1^{commit}") || {
    echo "tidy.sh: $1 is no commit" >&2
    exit 2
  }
else
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  [[ -n "$base" && "$base" != "$(git rev-parse HEAD)" ]] || base=$(git rev-parse --verify --quiet HEAD~1 || true)
  if [[ -z "$base" ]]; then
    echo "SKIPPED: the history is not here to tell what has changed"
    exit
  fi
fi

mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.h')
# Headers last: what is in them is mostly seen from the sources.
mapfile -t changed < <(printf '%s\n' "${changed[@]}" | sed '/^$/d' | sort -t . -k 2,2 -s)
limit=${TIDY_FILES:-${#changed[@]}}
if ((${#changed[@]} > limit)); then
  echo "Left out, being more than $limit: ${changed[*]:limit}"
fi
changed=("${changed[@]:0:limit}")
if ((${#changed[@]})); then
  findings=$(git diff --unified=0 "$base" -- "${changed[@]}" |
    clang-tidy-diff-14.py -p1 -path build/tidy -j "$(nproc)" -quiet -clang-tidy-binary clang-tidy-14 2>&1 |
    grep -vE '^[0-9]+ warnings? generated\.$|^$|^No relevant changes found\.$' || true)
  if [[ -n "$findings" ]]; then
    echo "$findings" >&2
    echo "tidy.sh: findings in lines that are not as in $base" >&2
    exit 1
  fi
fi
echo "${#changed[@]} files are tidy where they have changed since ${base:0:10}"
