#!/usr/bin/env bash
# Makes what is released into dist/, from a clean clone of HEAD, and tests each artefact in a root directory of its own.
#
#   scripts/release.sh           builds twice, in two directories, which must give the same bytes
#   scripts/release.sh --once    builds once
#
# Needs root (chroot, debootstrap), the network (packages of the distributions) and 6 GB under ${TMPDIR:-/tmp}.
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
# shellcheck disable=SC1091 # the system's
[[ $(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}") == debian12 ]] || fail "this needs Debian 12, where the artefacts are compiled"
[[ $EUID -eq 0 ]] || fail "the tests need root, for chroot"
[[ $(uname -m) == x86_64 ]] || fail "this makes artefacts for x86_64 and runs them; this machine is $(uname -m)"
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
summary=$(sed -n 's/^ *DESCRIPTION "\(.*\)")$/\1/p' CMakeLists.txt)
seconds=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=$seconds # for cpack
debian=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
[[ -n "$version" && -n "$summary" ]] || fail "CMakeLists.txt has no project(reshard VERSION … DESCRIPTION …)"
[[ -z "$(git status --porcelain)" ]] || echo "release.sh: the clone has what is committed, not what else is in this tree" >&2

work=$(mktemp --directory --tmpdir reshard-release-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
model=testdata/golden/optimum/qwen3-tp4-pp3-gqa/original

build() { # REPOSITORY DIRECTORY
  git clone --quiet "$1" "$2"
  shift
  "$1/scripts/build-static-packages.sh"
  (
    cd "$1"
    cmake --preset dist
    cmake --build --preset dist
  ) >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2 && fail "the build failed"; }
}

# The copyright files of all packages of which the program has headers or libraries.
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

# A directory tree of PROGRAM, as below /usr.
stage() { # SOURCE TREE PROGRAM
  local program=$2/bin/reshard shell
  local -A completion=([bash]=bash-completion/completions/reshard [zsh]=zsh/site-functions/_reshard
    [fish]=fish/vendor_completions.d/reshard.fish)
  install -D "$1/build/dist/apps/reshard/$3" "$program"
  strip --strip-all "$program"
  add_licenses "$1" "$2"
  if "$program" man >"$work/man" 2>/dev/null; then
    install -D -m 644 "$work/man" "$2/share/man/man1/reshard.1"
  fi
  for shell in "${!completion[@]}"; do
    if "$program" completion "$shell" >"$work/completion" 2>/dev/null; then
      install -D -m 644 "$work/completion" "$2/share/${completion[$shell]}"
    fi
  done
}

pack() { # SOURCE OUT
  local trees=$2-trees plugin
  mkdir -p "$2"
  stage "$1" "$trees/static" reshard_static
  stage "$1" "$trees/mpi" reshard
  for plugin in "$1"/build/dist/apps/reshard/libreshard_mpi_*.so; do
    install -D "$plugin" "$trees/mpi/lib/reshard/${plugin##*/}"
    strip --strip-unneeded "$trees/mpi/lib/reshard/${plugin##*/}"
  done
  pack_one tarball "$trees/static" "$2/reshard-$version-linux-x86_64.tar.gz"
  pack_one tarball "$trees/mpi" "$2/reshard-$version-linux-x86_64-mpi.tar.gz"
  pack_one wheel "$trees/static" "$2/reshard-$version-$tags.whl" --tags "$tags"
  pack_one image "$trees/static" "$2/reshard-$version-oci.tar"
  (
    cd "$1/build/dist"
    make_package program 1 -D "CPACK_RESHARD_LICENSES=$trees/mpi/share/doc/reshard/licenses"
    make_package development 1~deb12
    cp ./*.deb "$2"
  )
  pack_debian13 "$1" "$2"
}

make_package() { # COMPONENT RELEASE OPTIONS…: in the current directory, a build
  cpack -G DEB -D CPACK_COMPONENTS_ALL="$1" -D CPACK_DEBIAN_PACKAGE_RELEASE="$2" "${@:3}" >"$work/log" ||
    { cat "$work/log" >&2 && fail "cpack: no package of $1"; }
}

# libreshard-dev for Debian 13, whose fmt, Highway and RE2 are others. Built there, at the same path.
pack_debian13() { # SOURCE OUT
  base_root debian13 trixie "$debian" python3-venv || fail "there is no root of Debian 13 to build libreshard-dev in"
  root=$work/builder
  [[ -d $root ]] || cp -a "$work/base/debian13" "$root"
  git clone --quiet "$1" "$root$1"
  # shellcheck disable=SC2016 # expanded there
  online bash -euc 'cd "$1"
    scripts/install-packages.sh
    cmake --preset dist -DRESHARD_STATIC=OFF -DRESHARD_MPI=OFF
    cmake --build --preset dist --target reshard_engine
    cd build/dist
    cpack -G DEB -D CPACK_COMPONENTS_ALL=development -D CPACK_DEBIAN_PACKAGE_RELEASE=1~deb13' _ "$1" >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" >&2 && fail "the build on Debian 13 failed"; }
  cp "$root$1"/build/dist/*.deb "$2"
}

pack_one() { # KIND TREE FILE OPTIONS…
  scripts/pack.py "$@" --version "$version" --time "$seconds" --summary "$summary"
}

# Runs `$@ ARGUMENTS…` in the root directory $root, which gets a model: there and back.
exercise() {
  rm -rf "$root/model" "$root/tp2" "$root/whole"
  cp -r "$model" "$root/model"
  [[ "$("$@" --version)" == "reshard $version" ]] || fail "$*: --version is not $version"
  "$@" shard /model /tp2 --tp 2 --quiet
  "$@" verify /model /tp2 >"$work/log"
  "$@" consolidate /tp2 /whole --quiet
  cmp "$root/model/model.safetensors" "$root/whole/model.safetensors" || fail "$*: another model came back"
}

says() { # TEXT COMMAND…: it fails with this text
  ! "${@:2}" >"$work/log" 2>&1 || fail "did not fail: ${*:2}"
  grep -qF -- "$1" "$work/log" || { cat "$work/log" >&2 && fail "${*:2}: does not say: $1"; }
}

declare -A tested=()
# Notes that the artefact of this name passed there.
passed() { # FILE WHERE
  tested[$1]+="${tested[$1]:+; }$2"
  echo "$1: $2"
}

fresh_root() { # NAME: an empty root, or one of a distribution, as $root
  root=$work/root
  rm -rf --one-file-system "$root"
  if [[ $1 == empty ]]; then mkdir "$root"; else cp -a "$work/base/$1" "$root"; fi
}

clean=(/usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C.UTF-8)
in_root() { # COMMAND…: without network
  unshare --net chroot "$root" "${clean[@]}" "$@"
}

online() { # COMMAND…: in the root, with network and /proc, for apt and builds
  cp /etc/resolv.conf "$root/etc"
  # shellcheck disable=SC2016 # expanded there
  unshare --mount bash -euc 'mount -t proc proc "$0/proc"; exec chroot "$0" "$@"' "$root" \
    "${clean[@]}" DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH="$seconds" "$@"
}

install_there() { # PACKAGES…
  { online apt-get update && online apt-get install --yes --no-install-recommends "$@"; } >"$work/log" 2>&1 ||
    { cat "$work/log" >&2 && fail "apt-get install $* fails"; }
}

test_static_tarball() { # WHERE
  local name=reshard-$version-linux-x86_64.tar.gz program=/reshard-$version/bin/reshard
  fresh_root "$1"
  tar --extract --file "dist/$name" --directory "$root"
  exercise unshare --net chroot "$root" "$program"
  says "this build of reshard is static and has no MPI" chroot "$root" "$program" inspect /model --mpi yes
  chroot "$root" "$program" doctor | grep -F "this build of reshard is static and has no MPI" >/dev/null
  OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 \
    says "started 2 processes, but this build of reshard is static" chroot "$root" "$program" inspect /model
  passed "$name" "$2"
}

test_mpi_tarball() { # WHERE
  local name=reshard-$version-linux-x86_64-mpi.tar.gz
  fresh_root "$1"
  tar --extract --file "dist/$name" --directory "$root"
  exercise in_root "/reshard-$version/bin/reshard"
  passed "$name" "$2"
}

# Two ranks write what one process writes. On this machine, which has both MPIs.
test_ranks() {
  local name=reshard-$version-linux-x86_64-mpi.tar.gz family program
  fresh_root empty
  tar --extract --file "dist/$name" --directory "$root"
  program=$root/reshard-$version/bin/reshard
  "$program" shard "$model" "$root/one" --tp 4 --quiet
  for family in openmpi mpich; do
    local launcher=("mpirun.$family" -n 2)
    [[ $family == mpich ]] || launcher+=(--allow-run-as-root --oversubscribe)
    command -v "${launcher[0]}" >/dev/null || continue
    "${launcher[@]}" "$program" shard "$model" "$root/$family" --tp 4 --mpi yes --quiet >"$work/log" 2>&1 ||
      { cat "$work/log" >&2 && fail "${launcher[*]} fails"; }
    diff -r "$root/one" "$root/$family" || fail "${launcher[*]}: two ranks write something else than one"
    passed "$name" "${launcher[0]} -n 2"
  done
}

test_wheel() { # WHERE
  local name=reshard-$version-$tags.whl
  fresh_root "$1"
  cp "dist/$name" "$root"
  in_root python3 -m venv /venv
  local list=(find "$root/venv" -not -path '*__pycache__*' -not -name '*.pyc')
  "${list[@]}" | sort >"$work/before"
  in_root /venv/bin/pip --disable-pip-version-check install --quiet --no-index "/$name"
  exercise in_root /venv/bin/reshard
  [[ "$(in_root /venv/bin/python -m reshard --version)" == "reshard $version" ]] || fail "$name: python -m reshard fails"
  in_root /venv/bin/pip --disable-pip-version-check uninstall --quiet --yes reshard
  "${list[@]}" | sort | diff "$work/before" - || fail "$name: pip uninstall leaves something"
  [[ -z "$(find "$root/venv" -iname '*reshard*')" ]] || fail "$name: pip uninstall leaves something"
  passed "$name" "$2, $(in_root /venv/bin/pip --version | cut -d ' ' -f 1,2) of $(in_root python3 --version)"
}

test_debian_program() { # ROOT WHERE
  local name=reshard_$version-1_amd64.deb
  fresh_root "$1"
  local list=(find "$root" -path "$root/var" -prune -o -print)
  "${list[@]}" | sort >"$work/before"
  cp "dist/$name" "$root/var"
  in_root apt-get install --yes "/var/$name" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "apt-get install $name fails"; }
  exercise in_root reshard
  in_root zcat /usr/share/man/man1/reshard.1.gz | grep '^\.TH RESHARD 1' >/dev/null || fail "$name: no manual page"
  in_root reshard doctor | grep -F 'libmpi.so.40: cannot open' >/dev/null || fail "$name: the plug-in for Open MPI is not found"
  in_root bash -n /usr/share/bash-completion/completions/reshard
  rm -r "${root:?}"/{model,tp2,whole,"var/$name"}
  in_root apt-get purge --yes reshard >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "apt-get purge reshard fails"; }
  "${list[@]}" | sort | diff "$work/before" - || fail "$name: apt-get purge leaves something"
  [[ -z "$(find "$root/var" -iname '*reshard*')" ]] || fail "$name: apt-get purge leaves something in /var"
  passed "$name" "$2"
}

test_debian_library() { # ROOT WHERE
  local name=libreshard-dev_$version-1~${1/debian/deb}_amd64.deb
  fresh_root "$1"
  cp -r tests/package testdata/golden/optimum/llama-tp2-pp2/original "dist/$name" "$root"
  install_there "/$name" g++ cmake make
  in_root /package/check.sh /original /build >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "$name: nothing can use it"; }
  passed "$name" "$2"
}

test_image() {
  local name=reshard-$version-oci.tar entry
  skopeo inspect --config "oci-archive:dist/$name" >"$work/config.json"
  entry=$(sed -n '/"Entrypoint"/,/]/p' "$work/config.json" | tr -d ' \n')
  [[ $entry == '"Entrypoint":["reshard"],'* || $entry == '"Entrypoint":["reshard"]'* ]] || fail "$name: entry point: $entry"
  # skopeo checks digests and sizes of what it copies, umoci unpacks it.
  rm -rf "$work/oci" "$work/bundle"
  skopeo copy --quiet "oci-archive:dist/$name" "oci:$work/oci:image"
  umoci unpack --image "$work/oci:image" "$work/bundle" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "$name: umoci fails"; }
  root=$work/bundle/rootfs
  exercise unshare --net chroot "$root" /usr/bin/reshard
  passed "$name" "skopeo, umoci and chroot"
}

base_root() { # NAME SUITE MIRROR PACKAGES OPTIONS…
  [[ ! -d $work/base/$1 ]] || return 0
  command -v debootstrap >/dev/null || return 1
  debootstrap --variant=minbase --include="$4" "${@:5}" "$2" "$work/base/$1" "$3" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 3 "$work/debootstrap.log" >&2 && rm -rf --one-file-system "$work/base/$1" && return 1; }
}

# The keys of Ubuntu's archive are in no package of Debian 12.
ubuntu_keyring() {
  local url=https://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2018.09.18.1~18.04.2_all.deb
  local digest=5d8609563fb3074026b254d7d5248f90d393c7dbafcac48916f333bf3c90fed9
  curl --silent --show-error --fail --output "$work/keyring.deb" "$url" &&
    sha256sum --quiet --check <<<"$digest  $work/keyring.deb" && dpkg-deb -x "$work/keyring.deb" "$work/keyring"
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

step "Debian packages by lintian"
# No address of the developers is known, and no archive of Debian has a bug that asks for the packages.
lintian --allow-root --fail-on error dist/*.deb \
  --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs

step "Tests in fresh roots"
test_static_tarball empty "an empty root"
test_image
test_ranks
ubuntu_keyring || echo "release.sh: there are no keys of Ubuntu's archive" >&2
while IFS='|' read -r name suite mirror where options; do
  read -r -a options <<<"$options"
  if ! base_root "$name" "$suite" "$mirror" python3-venv "${options[@]}"; then
    echo "release.sh: NOT TESTED in $where: debootstrap fails" >&2
    continue
  fi
  test_static_tarball "$name" "$where"
  test_wheel "$name" "$where"
  if [[ $name == debian* ]]; then # Ubuntu's glibc is older
    test_mpi_tarball "$name" "$where"
    test_debian_program "$name" "$where"
    test_debian_library "$name" "$where"
  fi
  rm -rf --one-file-system "$work/base/$name"
done <<END
debian12|bookworm|$debian|Debian 12|
debian13|trixie|$debian|Debian 13|
ubuntu18|bionic|http://archive.ubuntu.com/ubuntu|Ubuntu 18.04|--components=main,universe --keyring=$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
END

step "dist/"
for file in dist/*; do
  printf '%s  %s\n    %s\n' "$(du --human-readable --apparent-size "$file" | cut -f 1)" "${file#dist/}" "${tested[${file#dist/}]:-}"
done
