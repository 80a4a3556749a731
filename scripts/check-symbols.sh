#!/usr/bin/env bash
# Fails if PROGRAM needs a newer glibc than GLIBC, such as 2.34, or any shared library but those of glibc and GCC's
# unwinder, or if it should be static and is not. Prints what it needs.
#
#   scripts/check-symbols.sh PROGRAM GLIBC       needs glibc of this version or older
#   scripts/check-symbols.sh PROGRAM static      needs nothing
set -euo pipefail

fail() {
  echo "check-symbols.sh: $*" >&2
  exit 1
}

if [[ $# -ne 2 || ! -f "$1" || ! "$2" =~ ^(static|[0-9]+\.[0-9]+)$ ]]; then
  echo "usage: scripts/check-symbols.sh PROGRAM GLIBC|static" >&2
  exit 2
fi
mapfile -t libraries < <(objdump -p "$1" | sed -n 's/^ *NEEDED *//p')
if [[ $2 == static ]]; then
  ((${#libraries[@]} == 0)) || fail "$1 needs ${libraries[*]}"
  ! objdump -p "$1" | grep -q '^ *INTERP' || fail "$1 needs a dynamic loader"
  echo "$1 needs no library"
  exit 0
fi
((${#libraries[@]})) || fail "$1 is static"
for library in "${libraries[@]}"; do
  [[ $library =~ ^(libgcc_s|libc|libm|libdl|libpthread|librt|ld-linux-x86-64|ld-linux-aarch64)\.so\.[0-9]+$ ]] ||
    fail "$1 needs $library, which not every system has"
done
mapfile -t versions < <(objdump -T "$1" | grep -oP '\(?GLIBC_\K[0-9.]+' | sort -uV)
newest=${versions[-1]}
if [[ $(printf '%s\n' "$newest" "$2" | sort -V | tail -n 1) != "$2" ]]; then
  fail "$1 needs glibc $newest, not $2, for $(objdump -T "$1" | grep -oP "\(?GLIBC_${newest//./\\.}\)? +\K\S+" | paste -sd ' ')"
fi
echo "$1 needs ${libraries[*]} of glibc $newest"
