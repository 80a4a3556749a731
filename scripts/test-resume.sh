#!/usr/bin/env bash
# Kills the program of BUILD (a folder such as build/release) at random moments, with SIGKILL, and has it go on with
# --resume until it is done: the outputs have to be those of an undisturbed run. Then with SIGTERM, which leaves
# a journal, and without --resume nothing; and while --force replaces outputs.
#
#   scripts/test-resume.sh BUILD           10 runs that are killed
#   scripts/test-resume.sh BUILD 300       300 of them
#
# Works in a temporary directory under ${TMPDIR:-/tmp} that goes away at the end; it takes 4 GB.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "test-resume.sh: $*" >&2
  [[ -s "${work:-}/err" ]] && tail -n 20 "$work/err" >&2
  exit 1
}

if [[ $# -lt 1 || $# -gt 2 || ! "${2:-10}" =~ ^[0-9]+$ ]]; then
  echo "usage: scripts/test-resume.sh BUILD [KILLS]" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
kills=${2:-10}
reshard=$build/apps/reshard/reshard
work=$(mktemp --directory --tmpdir reshard-resume-XXXXXX)
at_end() {
  rm -rf "$work"
}
trap at_end EXIT
trap 'exit 130' INT

export RESHARD_JOURNAL_INTERVAL=0.05
"$build/apps/tools/make_model" "$work/model" --hidden 2048 --intermediate 5504 --layers 10 --vocab 8192 >"$work/out"
sums() {
  (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
# Waits until the process has written a journal, or ended.
until_journal() {
  while kill -0 "$1" 2>/dev/null && ! compgen -G "$work/.out-dir.reshard-*/.journal-*" >/dev/null; do sleep 0.01; done
}
commands=("shard $work/model OUT --tp 4" "shard $work/model OUT --tp 2 --pp 2 --format xser --manifest"
  "consolidate $work/shards OUT --manifest")
"$reshard" shard "$work/model" "$work/shards" --tp 4 --quiet
killed=0 late=0 went_on=0 resumed=0
# A few kills may all come before the first journal, or after the last byte.
for ((i = 0; killed < kills || (kills > 0 && went_on == 0 && killed < kills + 30); ++i)); do
  command=${commands[i % ${#commands[@]}]}
  whole=$work/whole-$((i % ${#commands[@]}))
  if [[ ! -d $whole ]]; then
    # shellcheck disable=SC2086 # words of a command line
    "$reshard" ${command/OUT/$whole} --quiet
    sums "$whole" >"$whole.sums"
    rm -rf "${whole:?}"/* # the folder says that the sums are there
  fi
  out=$work/out-dir
  # Until it is done: killed within what one run takes, and then not any more.
  for ((attempt = 0; ; ++attempt)); do
    # shellcheck disable=SC2086
    "$reshard" ${command/OUT/$out} --resume --json >"$work/json" 2>"$work/err" &
    pid=$!
    if ((attempt < 3)); then
      # Half of the kills wait for a journal, which a slow disk confirms seconds after the run has begun.
      if ((RANDOM % 2)); then
        until_journal "$pid"
        sleep "0.$(printf '%03d' $((RANDOM % 200)))"
      else
        sleep "0.$(printf '%03d' $((RANDOM % 900)))"
      fi
      kill -9 "$pid" 2>/dev/null || true
    fi
    if wait "$pid" 2>/dev/null; then break; fi
    ((attempt < 3)) || fail "run $i does not go on: ${command/OUT/$out}"
    killed=$((killed + 1))
    [[ ! -e $out ]] && continue
    sums "$out" | cmp -s - "$whole.sums" || fail "half an output stands in $out"
    late=$((late + 1)) # after the output had its name, and before the program had ended
    echo '{"resumed_bytes": 0}' >"$work/json"
    break
  done
  bytes=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["resumed_bytes"])' <"$work/json")
  ((bytes == 0)) || went_on=$((went_on + 1))
  resumed=$((resumed + bytes))
  sums "$out" | cmp -s - "$whole.sums" || fail "run $i made other bytes: ${command/OUT/$out}"
  rm -rf "$out"
  rm -rf "$work"/.out-dir.reshard-* # of runs that were killed before their journal began, or with a shorter one
done
((went_on > 0 || kills == 0)) || fail "none of $killed killed runs left a journal"
echo "$killed runs were killed, $late of them when all was written; $went_on went on from a journal, with $((resumed / 1000000)) MB that were not written again"

# A signal leaves a journal, though its interval is far from over.
"$reshard" shard "$work/model" "$work/whole" --tp 4 --quiet
sums "$work/whole" >"$work/whole.sums"
stopped=0 kept=0
for ((i = 0; kept < 3; ++i)); do
  ((i < 60)) || fail "only $kept of $stopped runs that got SIGTERM left a journal"
  RESHARD_JOURNAL_INTERVAL=3600 "$reshard" shard "$work/model" "$work/out-dir" --tp 4 --resume --quiet 2>"$work/err" &
  pid=$!
  sleep "$((i % 20 / 10)).$((i % 10))5" # from before its first unit to after its last
  kill -TERM "$pid" 2>/dev/null || true
  code=0
  wait "$pid" || code=$?
  if ((code == 130)); then
    stopped=$((stopped + 1))
    if grep -q "continues from there" "$work/err"; then kept=$((kept + 1)); fi
  else
    ((code == 0 || code == 143)) || fail "exit code $code after SIGTERM" # 143: before it handles signals
  fi
  "$reshard" shard "$work/model" "$work/out-dir" --tp 4 --resume --json >"$work/json" 2>"$work/err" || true
  [[ -e $work/out-dir ]] || fail "the run does not go on after SIGTERM"
  sums "$work/out-dir" | cmp -s - "$work/whole.sums" || fail "other bytes after SIGTERM"
  rm -rf "$work/out-dir"
done
echo "$stopped runs got SIGTERM, $kept of them left what they had written"

# --clean takes what a killed run has left, though the output is complete by now, and nothing else.
"$reshard" shard "$work/model" "$work/out-dir" --tp 4 >/dev/null 2>&1 &
sleep 0.2
kill -9 $! 2>/dev/null || true
wait $! 2>/dev/null || true
mkdir "$work/.other.reshard-abcdef" "$work/precious" "$work/.out-dir.reshard-foreig"
touch "$work/precious/"{.lock,data} "$work/.out-dir.reshard-foreig/"{.lock,data}
ln -s precious "$work/.out-dir.reshard-linked"
"$reshard" shard "$work/model" "$work/out-dir" --tp 4 --force --quiet 2>"$work/err"
code=0
"$reshard" shard "$work/model" "$work/out-dir" --tp 4 --clean --quiet 2>"$work/err" || code=$?
((code == 3)) || fail "an output that is complete was no error, but exit code $code"
[[ -e "$work/precious/data" && -e "$work/.out-dir.reshard-foreig/data" ]] || fail "--clean removed what no run has made"
rm -r "$work/.out-dir.reshard-foreig" "$work/.out-dir.reshard-linked"
compgen -G "$work/.out-dir.reshard-*" >/dev/null && fail "--clean left something"
[[ -d "$work/.other.reshard-abcdef" ]] || fail "--clean removed what belongs to another output"
rm -rf "$work/out-dir"
echo "--clean removed what a killed run had left, and nothing else"

# Killed while --force replaces outputs one by one: readers see the old ones, the new ones, or an error that names the
# interrupted run, and the next run finishes it.
for seed in 1 2; do
  "$build/apps/tools/make_model" "$work/small-$seed" --hidden 64 --intermediate 128 --layers 60 --vocab 256 \
    --seed $seed >"$work/out"
  "$reshard" convert "$work/small-$seed" "$work/whole-$seed" --max-shard-size 30000 --quiet
  sums "$work/whole-$seed" >"$work/whole-$seed.sums"
done
old=0 new=0 refused=0
for ((i = 0; i < kills || (refused == 0 && i < 40); ++i)); do
  cp -r "$work/whole-1" "$work/out-dir"
  touch "$work/out-dir/mine" # which stays, so that the directory cannot be swapped as a whole
  "$reshard" convert "$work/small-2" "$work/out-dir" --max-shard-size 30000 --force --quiet 2>"$work/err" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null && ! compgen -G "$work/out-dir/.reshard-*/.swap" >/dev/null; do :; done
  kill -9 "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  if "$reshard" verify "$work/out-dir" "$work/small-1" --quiet >"$work/out" 2>"$work/err"; then
    old=$((old + 1))
  elif "$reshard" verify "$work/out-dir" "$work/small-2" --quiet >"$work/out" 2>"$work/err"; then
    new=$((new + 1))
  else
    grep -q "run was killed while it published its outputs here" "$work/err" || fail "old and new outputs are mixed"
    refused=$((refused + 1))
    "$reshard" convert "$work/small-2" "$work/out-dir" --max-shard-size 30000 --quiet 2>"$work/err" &&
      fail "outputs were replaced without --force"
    "$reshard" verify "$work/out-dir" "$work/small-2" --quiet >"$work/out" || fail "the next run did not finish"
  fi
  "$reshard" convert "$work/small-2" "$work/out-dir" --max-shard-size 30000 --force --clean --quiet 2>"$work/err"
  rm "$work/out-dir/mine"
  sums "$work/out-dir" | cmp -s - "$work/whole-2.sums" || fail "other bytes after an interrupted --force"
  rm -r "$work/out-dir"
done
echo "of $i runs with --force that were killed, $old left the old outputs, $new the new ones, $refused were finished by the next run"
