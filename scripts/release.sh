#!/usr/bin/env bash
# Makes what is released into dist/, from a clean clone of HEAD, and runs scripts/test-dist.sh, which tests it.
#
#   scripts/release.sh           builds twice, in two directories, which must give the same bytes
#   scripts/release.sh --once    builds once
#
# Needs Debian 12, root (chroot, debootstrap), the network (packages of the distributions) and 8 GB under ${TMPDIR:-/tmp}.
# The version is that of project(…) in CMakeLists.txt; the time of all files is that of the commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

glibc=2.34 # what the program that is not static may need
# Static: any glibc that pip can name, and musl.
tags=py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.musllinux_1_1_x86_64

fail() {
  echo "release.sh: $*" >&2
  exit 1
}

step() {
  printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"
}

if [[ $# -gt 1 || "${1:---once}" != --once ]]; then
  echo "usage: scripts/release.sh [--once]" >&2
  exit 2
fi
grep -qs '^VERSION_ID="12"' /etc/os-release || fail "this needs Debian 12, where the artefacts are compiled"
[[ $EUID -eq 0 ]] || fail "this needs root, for chroot"
[[ $(uname -m) == x86_64 ]] || fail "this makes artefacts for x86_64 and runs them; this machine is $(uname -m)"
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
summary=$(sed -n 's/^ *DESCRIPTION "\(.*\)")$/\1/p' CMakeLists.txt)
seconds=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=$seconds # for cpack
[[ -n "$version" && -n "$summary" ]] || fail "CMakeLists.txt has no project(reshard VERSION … DESCRIPTION …)"
[[ -z "$(git status --porcelain)" ]] || echo "release.sh: the clone has what is committed, not what else is in this tree" >&2

work=$(mktemp --directory --tmpdir reshard-release-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
# shellcheck source=scripts/roots.sh
source scripts/roots.sh

build() { # REPOSITORY DIRECTORY
  git clone --quiet "$1" "$2"
  "$2/scripts/build-static-packages.sh"
  (
    cd "$2"
    quietly cmake --preset dist
    quietly cmake --build --preset dist
  )
}

# The copyright files of all packages whose headers or libraries were compiled into the program.
add_licenses() { # SOURCE TREE
  local folder=$2/share/doc/reshard build=$1/build/dist packages
  mkdir -p "$folder/licenses"
  cp "$1/LICENSE" "$1/CHANGELOG.md" "$folder"
  mapfile -t packages < <({
    {
      ninja -C "$build" -t deps
      ninja -C "$build" -t commands reshard_static | tail -n 1 | tr ' ' '\n' | grep '\.a$'
      for library in libstdc++.a libgcc.a libc.a; do g++ -print-file-name="$library"; done
    } | grep -oP '^ *\K/usr/\S+' | sort -u | xargs realpath --no-symlinks | sort -u | xargs dpkg -S | sed 's/:.*//'
    printf '%s\n' libfmt-dev libhwy-dev # built by build-static-packages.sh
  } | sort -u)
  for package in "${packages[@]}"; do
    cp --dereference "/usr/share/doc/$package/copyright" "$folder/licenses/$package"
    dpkg-query --show --showformat='${Architecture} ${Package} ${Version}, of the source ${source:Package} ${source:Version}\n' \
      "$package" | sed -n -E 's/^(amd64|all) //p'
  done >"$folder/licenses/VERSIONS"
}

pack() { # SOURCE OUT
  local build=$1/build/dist trees=$2-trees
  mkdir -p "$2" "$trees"
  quietly cmake --install "$build" --component program --strip --prefix "$trees/mpi"
  add_licenses "$1" "$trees/mpi"
  cp -r "$trees/mpi" "$trees/static"
  rm -r "$trees/static"/{lib,share/doc/reshard/licenses/lib*mpi*-dev} # plug-ins
  sed -i "/^lib[a-z]*mpi[a-z]*-dev /d" "$trees/static/share/doc/reshard/licenses/VERSIONS"
  strip --strip-all -o "$trees/static/bin/reshard" "$build/apps/reshard/reshard_static"
  pack_one tarball "$trees/static" "$2/reshard-$version-linux-x86_64.tar.gz"
  pack_one tarball "$trees/mpi" "$2/reshard-$version-linux-x86_64-mpi.tar.gz"
  pack_one wheel "$trees/static" "$2/reshard-$version-$tags.whl" --tags "$tags"
  pack_one image "$trees/static" "$2/reshard-$version-oci.tar"
  (
    cd "$build"
    quietly cpack -G DEB -D CPACK_COMPONENTS_ALL=program -D "CPACK_RESHARD_LICENSES=$trees/mpi/share/doc/reshard/licenses"
    quietly cpack -G DEB -D CPACK_COMPONENTS_ALL=development -D CPACK_DEBIAN_PACKAGE_RELEASE=1~deb12
  )
  pack_debian13 "$1"
  cp "$build"/*.deb "$root$build"/*.deb "$2"
}

# libreshard-dev for Debian 13, whose fmt, Highway and RE2 are others. Built there, at the same path.
pack_debian13() { # SOURCE
  base_root debian13 trixie "$DEBIAN_MIRROR" || fail "there is no root of Debian 13 to build libreshard-dev in"
  root=$work/builder
  [[ -d $root ]] || cp -a "$ROOTS/debian13" "$root"
  git clone --quiet "$1" "$root$1"
  # shellcheck disable=SC2016 # expanded there
  quietly online env SOURCE_DATE_EPOCH="$seconds" bash -euc 'cd "$1"
    scripts/install-packages.sh
    cmake --preset dist -DRESHARD_STATIC=OFF -DRESHARD_MPI=OFF
    cmake --build --preset dist --target reshard_engine
    cd build/dist
    cpack -G DEB -D CPACK_COMPONENTS_ALL=development -D CPACK_DEBIAN_PACKAGE_RELEASE=1~deb13' _ "$1"
}

pack_one() { # KIND TREE FILE OPTIONS…
  scripts/pack.py "$@" --version "$version" --time "$seconds" --summary "$summary"
}

step "Packages"
scripts/install-packages.sh --release

step "Build"
build . "$work/reshard"
scripts/check-symbols.sh "$work/reshard/build/dist/apps/reshard/reshard" "$glibc"
scripts/check-symbols.sh "$work/reshard/build/dist/apps/reshard/reshard_static" static
pack "$work/reshard" "$work/dist"
(cd "$work/dist" && sha256sum -- *) >"$work/SHA256SUMS"
if [[ "${1:-}" != --once ]]; then
  step "Build again, elsewhere"
  build "$work/reshard" "$work/another/place" # the same commit, whatever was committed meanwhile
  pack "$work/another/place" "$work/again"
  (cd "$work/again" && sha256sum -- *) | diff "$work/SHA256SUMS" - || fail "two builds differ"
  echo "Both builds have the same bytes"
fi
rm -rf dist
cp -r "$work/dist" dist
cp "$work/SHA256SUMS" dist

ROOTS=$ROOTS scripts/test-dist.sh
