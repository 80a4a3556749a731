#!/usr/bin/env bash
# Fails where the tree breaks a rule that the compiler does not see.
#
# 1. A layout is one file. Its name stands in its own source, lib/reshard/layouts/NAME.{h,cpp}, and in the table there;
#    no other file of lib/ or apps/ may name it.
# 2. The library does not speak command line: its messages name parameters, as in `tp`, never options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "check-tree.sh: $*" >&2
  exit 1
}

table=lib/reshard/layouts/layout_table.cpp
mapfile -t names < <(sed -n 's/^const Layout& \([a-z0-9_]*\)_layout();$/\1/p' "$table")
((${#names[@]})) || fail "$table declares no layout"

own=("$table")
for name in "${names[@]}"; do
  [[ -f lib/reshard/layouts/$name.cpp ]] || fail "lib/reshard/layouts/$name.cpp is missing, which $table needs"
  own+=("lib/reshard/layouts/$name.cpp" "lib/reshard/layouts/$name.h")
done

# A name as a string, in an identifier, or after an option or the word layout. "optimum-neuron" is a program, and
# "ranks" a word: as a key of a report it is followed by a bracket or a comma.
words=$(IFS='|' && echo "${names[*]}")
constants=$(IFS='|' && echo "${names[*]^}") # kHf, kRanks
pattern="\b(--layout|--to|[Ll]ayouts?) ($words)\b(?!-)|[=(] *\"($words)\"|k($constants)\b|\b($words)_layout\b"
for name in "${names[@]}"; do
  [[ $name =~ ^(hf|ranks)$ ]] || pattern+="|\b$name\b(?!-)" # no English, and no part of other names
done
found=$(git ls-files --cached --others --exclude-standard lib apps |
  grep -E '\.(h|cpp|txt|in|json)$' | grep -vxFf <(printf '%s\n' "${own[@]}") |
  xargs grep -nP "$pattern" || true)
[[ -z "$found" ]] || fail "a layout is named outside its file:"$'\n'"$found"
echo "${#names[@]} layouts are named in their own files alone"

found=$(git ls-files --cached --others --exclude-standard lib | grep -E '\.(h|cpp)$' |
  xargs grep -nP '^(?!\s*//).*"([^"\\]|\\.)*(--[a-z{]|\b(OUT_DIR|SRC|DST)\b)' || true)
[[ -z "$found" ]] || fail "the library names an option of the program; write the parameter in backticks:"$'\n'"$found"
echo "The library names no options"
