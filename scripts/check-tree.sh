#!/usr/bin/env bash
# Fails where the tree breaks a rule that the compiler does not see.
#
# 1. A layout is one file. Its name stands in its own source, lib/reshard/layouts/ROOM/NAME.{h,cpp}, and in the table of
#    layouts; no other file of lib/ or of the program may name it. What is measured, apps/bench has to name.
# 2. The library does not speak command line: its messages name parameters, as in `tp`, never options.
# 3. No folder of the library has more than 25 headers and sources, and each has a README.
# 4. A header of the library that one other file of its floor includes, and no test, is part of that file, unless the two
#    would have more than 500 lines together.
# 5. CTest can run every test by its name: a semicolon splits it, and a leading hyphen makes it an option.
# 6. docs/environment.md lists every variable that is read, and no other. docs/README.md lists every page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "check-tree.sh: $*" >&2
  exit 1
}

table=lib/reshard/layouts/layout_table.cpp
mapfile -t names < <(sed -n 's/^const Layout& \([a-z0-9_]*\)_layout();$/\1/p' "$table")
((${#names[@]})) || fail "$table declares no layout"

# A name as a string, in an identifier, or after an option or the word layout; and wherever it stands, if it is no
# English word. Rooms, which are folders, may have the name of their layout. "optimum-neuron" is a program, "deepspeed/utils" and "deepspeed.utils" are another system's own code, and
# "ranks" is a key of reports, which a bracket or a comma follows.
for name in "${names[@]}"; do
  source=$(find lib/reshard/layouts -name "$name.cpp")
  source=${source%.cpp}
  [[ -f $source.cpp ]] || fail "lib/reshard/layouts has no $name.cpp, which $table needs"
  pattern="\b(--layout|--to|[Ll]ayouts?) $name\b(?!-)|[=(] *\"$name\"|k${name^}\b|\b${name}_layout\b"
  [[ $name =~ ^(hf|ranks)$ ]] || pattern+="|(?<=[/.])$name\b(?!-)|\b$name\b(?!-|/\w|\.\w)"
  found=$(git ls-files --cached --others --exclude-standard lib apps/reshard |
    grep -E '\.(h|cpp|txt|in|json)$' | grep -vxF -e "$table" -e "$source.cpp" -e "$source.h" |
    grep -v "^lib/reshard/specs/schemes/$name" |
    xargs grep -nP "$pattern" | grep -vE '^lib/CMakeLists.txt:|:#include "reshard/[a-z]+/'"$name/" || true)
  [[ -z "$found" ]] || fail "layout $name is named outside its file:"$'\n'"$found"
done
echo "${#names[@]} layouts are named in their own files alone"

found=$(git ls-files --cached --others --exclude-standard lib | grep -E '\.(h|cpp)$' |
  xargs grep -nP '^(?!\s*//).*"([^"\\]|\\.)*(--[a-z{]|\b(OUT_DIR|SRC|DST)\b)' || true)
[[ -z "$found" ]] || fail "the library names an option of the program; write the parameter in backticks:"$'\n'"$found"
echo "The library names no options"

found=$(git ls-files --cached --others --exclude-standard tests | grep -E '\.cpp$' |
  xargs grep -lPz '(TEMPLATE_)?TEST_CASE\(\s*"(-|[^"]*;)' || true)
[[ -z "$found" ]] || fail "CTest cannot run a test of this name:"$'\n'"$found"
echo "CTest can run every test's name"

folders=$(git ls-files --cached --others --exclude-standard lib/reshard | grep -E '\.(h|cpp)$' | xargs -n 1 dirname | sort)
found=$(uniq --count <<<"$folders" | awk '$1 > 25 { print $2 ": " $1 " headers and sources; divide it into rooms" }')
[[ -z "$found" ]] || fail "a folder has more than 25:"$'\n'"$found"
while read -r folder; do
  [[ $folder == lib/reshard || -f $folder/README.md ]] || fail "$folder has no README.md that says what it is for"
done < <(uniq <<<"$folders")
echo "$(uniq <<<"$folders" | wc -l) folders of the library have a README, and 25 files at most"

lines_of() {
  cat -- "$@" 2>/dev/null | wc -l
}
includes=$(git ls-files --cached --others --exclude-standard lib apps tests | grep -E '\.(h|cpp)$' |
  xargs grep -o '^#include "reshard/[^"]*"' 2>/dev/null | sed 's/:#include "/ /; s/"$//')
while read -r header; do
  source=${header%.h}.cpp
  mapfile -t users < <(awk -v header="${header#lib/}" -v source="$source" '$2 == header && $1 != source { print $1 }' <<<"$includes")
  ((${#users[@]} > 1)) && continue
  user=${users[0]:-}
  [[ -z "$user" || $(cut -d / -f 1-3 <<<"$user") == $(cut -d / -f 1-3 <<<"$header") ]] || continue
  # shellcheck disable=SC2086 # there may be none
  (($(lines_of "$header" "$source" $user) > 500)) ||
    fail "$header is included by ${user:-no file but its own source} alone: move what it declares there"
done < <(git ls-files --cached --others --exclude-standard lib/reshard | grep -E '/reshard/.+/.*\.h$')
echo "Each header of the library has several readers, or stands for much"
# Which sources read which variables: C++ by a string, Python by os.environ, scripts as ${NAME:-…}, CMake as cache variables.
sources() {
  git ls-files --cached --others --exclude-standard -- "$@"
}
read_variables() {
  sources 'apps/*.cpp' 'lib/*.cpp' 'tests/*.cpp' | xargs grep -ohP '"\KRESHARD_[A-Z_]+(?=")|getenv\("\K[A-Z_]+'
  grep -ohP '"\K[A-Z]+_[A-Z_]+(?=")' apps/reshard/launcher.cpp apps/reshard/word.cpp
  sources '*.py' | xargs grep -ohP 'os\.environ(\.get\(|\[)"\K[A-Z_]+|"\K[A-Z_]+(?=" (not )?in os\.environ)'
  sources 'scripts/*.sh' .ci/run | xargs grep -hv '^ *#' | grep -oP '\$\{\K[A-Z][A-Z_]*(?=:?[-+])'
  sources CMakeLists.txt '*/CMakeLists.txt' | xargs grep -ohP '^option\(\K\w+|^set\(\K\w+(?= .*CACHE|[^)]*$)' | grep ^RESHARD_
}
page=docs/environment.md
listed=$(grep '^|' "$page" | cut -d '|' -f 2 | grep -oP '`\K[A-Z_]+' | sort -u)
found=$(comm -3 <(read_variables | sort -u) <(printf '%s\n' "$listed"))
[[ -z "$found" ]] || fail "variables that are read (left) and that $page lists (right) differ:"$'\n'"$found"
echo "$page lists the $(wc -l <<<"$listed") variables that are read"

while read -r file; do
  [[ $file == README.md ]] || grep -qF "]($file)" docs/README.md || fail "docs/README.md has no link to docs/$file"
done < <(cd docs && sources '*.md')
echo "docs/README.md has links to all pages"
