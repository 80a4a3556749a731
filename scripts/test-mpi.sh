#!/usr/bin/env bash
# Runs the program of BUILD (a folder such as build/release) under real launchers: mpirun of Open MPI and of MPICH, and
# srun of a Slurm that it starts on this machine, if root. Holds what several ranks write against what one process
# writes, and ends ranks and launchers in the midst of it. Prints a line per check.
#
#   scripts/test-mpi.sh BUILD              3 times kill -9 and 3 times SIGTERM per mpirun, a third of it per srun
#   scripts/test-mpi.sh BUILD 100          100 of each
#   LAUNCHERS="mpich pmi2" scripts/test-mpi.sh BUILD     some of openmpi, mpich, pmix, pmi2 (the last two are srun's)
#
# Works in a temporary directory under ${TMPDIR:-/tmp} that goes away at the end.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "test-mpi.sh: $*" >&2
  for log in out err; do
    if [[ -s "${work:-}/$log" ]]; then
      echo "-- std$log of the last command:" >&2
      tail -n 40 "$work/$log" >&2
    fi
  done
  exit 1
}

if [[ $# -lt 1 || $# -gt 2 || "$1" == -* || ! "${2:-3}" =~ ^[0-9]+$ ]]; then
  echo "usage: [LAUNCHERS='openmpi mpich pmix pmi2'] scripts/test-mpi.sh BUILD [KILLS]" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
kills=${2:-3}
reshard=$build/apps/reshard/reshard
make_model=$build/apps/tools/make_model
[[ -x $reshard && -x $make_model ]] || fail "$build holds no reshard and make_model"
if [[ -n "${LAUNCHERS:-}" ]]; then
  read -ra launchers <<<"$LAUNCHERS"
elif ((EUID == 0)); then
  launchers=(openmpi mpich pmix pmi2)
else
  launchers=(openmpi mpich)
  echo "SKIPPED: srun, as only root can start a Slurm here"
fi

work=$(mktemp --directory --tmpdir reshard-mpi-XXXXXX)
at_end() {
  stop_slurm
  rm -rf "$work" || { sleep 1; rm -rf "$work"; } # a last step of Slurm may still write
}
trap at_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
model=$work/model
slurm=$work/slurm

# Root, more ranks than cores, quiet; the names of Open MPI 4 and of 5.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_btl=self,vader OMPI_MCA_orte_execute_quiet=1
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS} # MPI's own
unset RESHARD_MPI RESHARD_MPI_PLUGIN RESHARD_MPI_TIMEOUT RESHARD_MPI_START_TIMEOUT

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 10000))
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

# munged, slurmctld and slurmd on this machine, nothing of them outside $slurm.
start_slurm() {
  local host
  host=$(hostname -s)
  mkdir -p "$slurm/state" "$slurm/spool"
  chmod 755 "$work" "$slurm" # munged wants a socket that all can reach
  head -c 1024 /dev/urandom >"$slurm/munge.key"
  chmod 400 "$slurm/munge.key"
  munged --force --key-file="$slurm/munge.key" --socket="$slurm/munge.sock" --pid-file="$slurm/munged.pid" \
    --log-file="$slurm/munged.log" --seed-file="$slurm/munged.seed" 2>"$work/err"
  cat >"$slurm/slurm.conf" <<CONF
ClusterName=mini
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge.sock
CredType=cred/munge
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.log
SlurmdSpoolDir=$slurm/spool
StateSaveLocation=$slurm/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
KillWait=5
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONF
  # From Slurm 23 on it looks for cgroups unless it is told not to.
  [[ "$(slurmd -V)" =~ \ (1[0-9]|2[0-2])\. ]] ||
    printf 'CgroupPlugin=disabled\nIgnoreSystemd=yes\n' >"$slurm/cgroup.conf"
  export SLURM_CONF=$slurm/slurm.conf
  slurmctld -c -f "$SLURM_CONF" 2>"$work/err"
  slurmd -f "$SLURM_CONF" -N "$host" 2>"$work/err"
  for _ in {1..100}; do
    [[ "$(sinfo --noheader --format=%T 2>/dev/null)" == idle ]] && return
    sleep 0.1
  done
  cat "$slurm"/*.log >"$work/err"
  fail "the Slurm of this test does not start"
}

stop_slurm() {
  local name pids=()
  for name in slurmd slurmctld munged; do
    [[ ! -s $slurm/$name.pid ]] || pids+=("$(<"$slurm/$name.pid")")
  done
  ((${#pids[@]})) || return 0
  kill "${pids[@]}" 2>/dev/null || true
  sleep 0.5
  kill -9 "${pids[@]}" 2>/dev/null || true # slurmctld would save its state first, for seconds
}

# launch LAUNCHER RANKS COMMAND…: text goes to $work/out and err, the exit code to $code.
limit_s=30
launch() {
  local launcher=$1 ranks=$2 start=(mpirun."$1")
  shift 2
  [[ $launcher != pm* ]] || start=(srun --quiet --mpi="$launcher")
  code=0
  timeout -k 5 "$limit_s" "${start[@]}" -n "$ranks" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
}

alone() {
  code=0
  "$reshard" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
}

done_with() {
  printf '%4d s  %-8s %s\n' "$SECONDS" "$launcher" "$*"
}

# The target exists, and every byte of it is that of $1.
check_same() {
  diff --recursive --brief "$1" "$2" >"$work/diff" 2>&1 || fail "$launcher: $3: $(head -n 3 "$work/diff")"
}

# Nothing lies in $1, not even something half done.
check_empty() {
  [[ -z "$(ls -A "$1")" ]] || fail "$launcher: $2: it left $(ls -A "$1")"
}

check_code() {
  [[ " $1 " == *" $code "* ]] || fail "$launcher: $2: exit code $code, expected one of: $1"
}

# One of the ranks speaks for all.
check_said_once() {
  local count
  count=$(grep -c "$1" "$work/err" || true)
  ((count == 1)) || fail "$launcher: $2: \"$1\" is printed $count times"
}

# --- what several ranks write and say is what one does

# set_command NAME: sets $command, without the target, which comes last
set_command() {
  case $1 in
    shard) command=(shard "$model" --tp 4 --manifest) ;;
    consolidate) command=(consolidate "$work/shard" --max-shard-size 16MB) ;;
    convert) command=(convert "$work/shard" --format pytorch) ;;
  esac
}

expect_outputs() {
  local name
  for name in shard consolidate convert; do
    set_command "$name"
    alone "${command[@]}" "$work/$name" --quiet
    ((code == 0)) || fail "$name by one process: exit code $code"
  done
  cp -r "$work/shard" "$work/changed"
  local file
  file=$(find "$work/changed" -name checkpoint.pt | sort | tail -n 1)
  printf 'x' | dd of="$file" bs=1 seek="$(($(stat -c %s "$file") / 2))" conv=notrunc status=none
}

test_outputs() {
  local name ranks
  for ranks in 2 3 4; do
    [[ $ranks == 3 || $launcher != pm* ]] || continue # srun differs in the start alone
    for name in shard consolidate convert; do
      set_command "$name"
      launch "$launcher" "$ranks" "$reshard" "${command[@]}" "$targets/out" --quiet --no-sync
      check_code 0 "$name by $ranks ranks"
      check_same "$work/$name" "$targets/out" "$name by $ranks ranks"
      [[ ! -s $work/out && ! -s $work/err ]] || fail "$launcher: $name by $ranks ranks: it prints in spite of --quiet"
      rm -r "$targets/out"
      check_empty "$targets" "$name by $ranks ranks"
    done
    done_with "shard, consolidate and convert by $ranks ranks write what one process writes"
  done
}

# set_report NAME: sets $command, and $expected_code
set_report() {
  expected_code=0
  case $1 in
    same) command=(verify "$model" "$work/shard") ;;
    different) command=(verify "$model" "$work/changed") expected_code=1 ;;
    different_json) command=(verify "$model" "$work/changed" --json) expected_code=1 ;;
    stats) command=(inspect "$work/shard" --stats --json) ;;
  esac
}
reports=(same different different_json stats)

expect_reports() {
  local name
  for name in "${reports[@]}"; do
    set_report "$name"
    alone "${command[@]}"
    check_code "$expected_code" "${command[0]} by one process"
    [[ -s $work/out ]] || fail "${command[0]} by one process prints nothing"
    cp "$work/out" "$work/report_$name"
  done
}

test_reports() {
  local name
  for name in "${reports[@]}"; do
    set_report "$name"
    launch "$launcher" 3 "$reshard" "${command[@]}"
    check_code "$expected_code" "${command[0]} by 3 ranks"
    diff "$work/report_$name" "$work/out" >"$work/diff" ||
      fail "$launcher: ${command[0]} by 3 ranks prints: $(head "$work/diff")"
  done
  done_with "verify and inspect --stats print and end as one process"
}

# --- wrong starts

test_other_options() {
  # shellcheck disable=SC2016 # the shell of the rank puts the values in
  launch "$launcher" 3 sh -c 'case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}} in 1) tp=2 ;; *) tp=4 ;; esac
    exec "$0" shard "$1" "$2" --tp $tp' "$reshard" "$model" "$targets/out"
  check_code 2 "ranks with other options"
  check_empty "$targets" "ranks with other options"
  check_said_once '^reshard: rank ' "ranks with other options"
  launch "$launcher" 3 "$reshard" shard "$model" "$targets/out" --tp 4 --nonsense
  check_code 2 "an option that does not exist"
  check_said_once '^reshard: ' "an option that does not exist"
  done_with "ranks with other options, or a wrong one, write nothing and say it once"
}

test_other_plugin() {
  local family=openmpi
  [[ $launcher != openmpi && $launcher != pmix ]] || family=mpich
  # Open MPI 4 under PMI-2 ends the process itself, with a text of its own.
  [[ $launcher != pmi2 ]] || return 0
  # Each process is alone for the other MPI, and Open MPI fails if several make its session directory at once.
  # shellcheck disable=SC2016 # the shell of the rank puts the values in
  RESHARD_MPI_PLUGIN=$build/apps/reshard/libreshard_mpi_$family.so \
    launch "$launcher" 3 sh -c 'TMPDIR=$(mktemp -d "$3/rank-XXXXXX") exec "$0" shard "$1" "$2" --tp 4' \
    "$reshard" "$model" "$targets/out" "$work"
  check_code 2 "a plug-in of the other MPI"
  check_empty "$targets" "a plug-in of the other MPI"
  check_said_once 'started 3 processes, but .* sees 1$' "a plug-in of the other MPI"
  done_with "a plug-in of the other MPI is refused, once"
}

# One rank alone cannot start, or has a wrong variable: it says so, whoever speaks for the others.
test_rank_apart() {
  local setting message
  for setting in RESHARD_MPI=bad RESHARD_MPI_PLUGIN=/nowhere/x.so; do
    message='there is no plug-in for MPI in /nowhere/x.so'
    [[ $setting != *bad ]] || message='RESHARD_MPI: "bad" is not one of'
    # shellcheck disable=SC2016 # the shell of the rank puts the values in
    RESHARD_MPI_START_TIMEOUT=5 launch "$launcher" 2 sh -c 'case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}} in
      1) export "$3" ;; esac
      exec "$0" shard "$1" "$2" --tp 4' "$reshard" "$model" "$targets/out" "$setting"
    ((code != 0)) || fail "$launcher: $setting on rank 1: exit code 0"
    check_empty "$targets" "$setting on rank 1"
    check_said_once "^reshard: rank 1 on .*$message" "$setting on rank 1"
  done
  done_with "one rank that cannot start says why"
}

test_no_launcher() {
  local launcher=none what="variables of a launcher that did not start it"
  set_command shard
  command+=("$targets/out")
  export SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0
  alone "${command[@]}"
  check_code 2 "$what"
  check_empty "$targets" "$what"
  check_said_once 'srun started 4 processes, but .* sees 1$' "$what"
  alone "${command[@]}" --mpi no
  check_code 0 "--mpi no"
  check_same "$work/shard" "$targets/out" "--mpi no"
  rm -r "$targets/out"
  unset SLURM_STEP_NUM_TASKS SLURM_PROCID
  RESHARD_MPI=yes alone "${command[@]}"
  check_code 2 "RESHARD_MPI=yes without a launcher"
  check_empty "$targets" "RESHARD_MPI=yes without a launcher"
  done_with "$what are noticed; --mpi no works alone"
}

# --- machines that see other files

# Each rank has mounts of its own, as on a machine of its own.
set_namespace() {
  local try
  for try in "unshare --mount" "unshare --user --map-root-user --mount"; do
    read -ra namespace <<<"$try"
    ! "${namespace[@]}" mount -t tmpfs none "$targets" 2>/dev/null || return 0
  done
  namespace=()
}

# launch_mounted SCRIPT COMMAND…: 3 ranks, each of which first mounts what SCRIPT says. It has the rank as $rank.
launch_mounted() {
  local script=$1
  shift
  launch "$launcher" 3 "${namespace[@]}" sh -euc "rank=\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\$SLURM_PROCID}}; $script
    exec \"\$@\"" sh "$reshard" "$@" --quiet
}

test_mounts() {
  if ((${#namespace[@]} == 0)); then
    echo "SKIPPED: ranks with mounts of their own, which this machine does not allow"
    return
  fi
  mkdir "$work/exported"
  set_command shard
  launch_mounted "mount --bind '$work/exported' '$targets'" "${command[@]}" "$targets/out"
  check_code 0 "a file system that each rank mounts"
  check_same "$work/shard" "$work/exported/out" "a file system that each rank mounts"
  rm -r "$work/exported/out"
  local what="an output that one rank does not see"
  launch_mounted "[ \$rank != 1 ] || mount -t tmpfs none '$targets'" "${command[@]}" "$targets/out"
  check_code 6 "$what"
  check_said_once 'rank 1 .*is not visible here' "$what"
  check_empty "$targets" "$what"
  what="a model that is another one for one rank"
  launch_mounted "[ \$rank != 1 ] || mount --bind '$work/shard' '$model'" "${command[@]}" "$targets/out"
  ((code != 0)) || fail "$launcher: $what: exit code 0"
  check_said_once '^reshard: rank 1 ' "$what"
  check_empty "$targets" "$what"
  rm -r "$work/exported"
  done_with "ranks with mounts of their own: a file system that they share, and what one of them does not see"
}

# --- deaths in the midst of it

now_ms() {
  local now=${EPOCHREALTIME/./}
  echo $((now / 1000))
}

# nap MILLISECONDS, without a process
nap() {
  read -rt "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))" <>"$work/silence" || true
}

# Starts 4 ranks that write $targets/out, and returns. A rank that waits for a dead one waits 5 s.
start_run() {
  local start=(mpirun."$launcher")
  [[ $launcher != pm* ]] || start=(srun --quiet --mpi="$launcher")
  set_command shard
  began_ms=$(now_ms)
  RESHARD_MPI_TIMEOUT=${1:-5} RESHARD_MPI_START_TIMEOUT=5 timeout -k 5 60 "${start[@]}" -n 4 \
    "$reshard" "${command[@]}" "$targets/out" --threads 1 >"$work/out" 2>"$work/err" </dev/null &
  run=$!
}

rank_pids() {
  pgrep --full "^$reshard ${command[*]} $targets/out " || true
}

# Waits for the launcher of start_run, and for its ranks.
end_run() {
  local ranks_ms
  ranks_ms=$(now_ms) # when there were some
  while kill -0 "$run" 2>/dev/null; do
    [[ -z "$(live_ranks)" ]] || ranks_ms=$(now_ms)
    if (($(now_ms) - ranks_ms > 8000)); then
      [[ $launcher == openmpi ]] || fail "$launcher: $1: the launcher outlives its ranks"
      # Open MPI 4: a rank was killed while it connected to mpirun, which then ends the others, but not itself.
      pkill -9 --parent "$run" || true
      hung=$((hung + 1))
      began_ms=$(now_ms)
    fi
    nap 20
  done
  code=0
  wait "$run" 2>/dev/null || code=$?
  took_ms=$(($(now_ms) - began_ms))
  ((took_ms < 20000)) || fail "$launcher: $1: the launcher took $took_ms ms to end"
  for _ in {1..50}; do
    [[ -n "$(live_ranks)" ]] || return 0
    sleep 0.1
  done
  fail "$launcher: $1: ranks outlive their launcher"
}

# A container's first process may leave the dead unreaped: those are none.
live_ranks() {
  local pid
  for pid in $(rank_pids); do
    [[ "$(ps -o stat= -p "$pid")" == [!Z]* ]] && echo "$pid"
  done
  return 0
}

# Returns once something of the target is there, or the run has ended.
wait_for_staging() {
  while kill -0 "$run" 2>/dev/null && ! is_something_there; do
    nap 5
  done
}

is_something_there() {
  compgen -G "$targets/*" >/dev/null || compgen -G "$targets/.[!.]*" >/dev/null
}

# The target is whole or absent, and the next run writes it: by one process, or by 3 ranks.
check_recovery() {
  local again=("${command[@]}" "$targets/out" --force --quiet)
  if [[ -e $targets/out ]]; then
    check_same "$work/shard" "$targets/out" "$1"
  elif ((code == 0)) && [[ $launcher != mpich ]]; then # that mpirun gives 0 after some deaths
    fail "$launcher: $1: exit code 0 without the target"
  fi
  if ((RANDOM % 2)); then
    alone "${again[@]}"
  else
    launch "$launcher" 3 "$reshard" "${again[@]}"
  fi
  check_code 0 "$1: the next run"
  check_same "$work/shard" "$targets/out" "$1: the next run"
  rm -rf "$targets"
  mkdir "$targets"
}

# Runs, and ends "rank" or "launcher": at a random time, or every other time soon after it began to write. Fails if the
# time was none of the run.
disturbed_run() {
  local what=$1 pids
  start_run
  if ((RANDOM % 2)); then
    nap $((RANDOM % usual_ms))
    mapfile -t pids < <(rank_pids)
  else
    wait_for_staging
    mapfile -t pids < <(rank_pids)
    nap $((RANDOM % 50))
  fi
  if is_something_there && [[ ! -e $targets/out ]]; then
    amid=$((amid + 1))
  fi
  if [[ $what == rank ]]; then
    ((${#pids[@]})) && kill -9 "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null
  else
    pkill -TERM --parent "$run"
  fi
}

test_kills() {
  local what hits amid hung=0 tries times=$kills
  [[ $launcher != pm* ]] || times=$(((kills + 2) / 3))
  start_run
  end_run "an undisturbed run"
  check_code 0 "an undisturbed run"
  usual_ms=$took_ms
  check_recovery "an undisturbed run"
  for what in rank launcher; do
    hits=0 amid=0 hung=0
    for ((tries = 0; hits < times; ++tries)); do
      ((tries < 10 * times)) || fail "$launcher: runs end before they can be disturbed"
      if disturbed_run "$what"; then
        hits=$((hits + 1))
      fi
      end_run "the end of a $what ($hits)"
      check_recovery "the end of a $what ($hits)"
    done
    ((amid > 0 || hits < 20)) || fail "$launcher: none of $hits runs was ended while it wrote"
    if ((hung)); then
      echo "        $launcher  mpirun itself hung $hung times, after its ranks had ended, and was killed"
    fi
    if [[ $what == rank ]]; then
      done_with "kill -9 of a rank, $hits times, $amid while they wrote: target whole or absent, the next run succeeds"
    else
      done_with "SIGTERM to the launcher, $hits times, $amid while they wrote: the same"
    fi
  done
}

# A rank that does not answer: its machine may be gone. The others give up, and publish nothing.
test_silent_rank() {
  local try pids hung=0
  for try in {1..5}; do
    start_run 2
    wait_for_staging
    mapfile -t pids < <(rank_pids)
    if ((${#pids[@]} == 4)); then
      kill -STOP "${pids[1]}" 2>/dev/null || true
      began_ms=$(now_ms)
      while (($(live_ranks | wc -l) > 1)); do
        nap 100
        (($(now_ms) - began_ms < 10000)) || fail "$launcher: SIGSTOP of a rank: the others do not end within 10 s"
      done
      kill -9 "${pids[1]}" 2>/dev/null || true # srun waits for it
    fi
    end_run "SIGSTOP of a rank"
    if [[ ! -e $targets/out ]]; then
      grep -q 'at least one did not answer' "$work/err" || fail "$launcher: SIGSTOP of a rank: nobody says so"
      check_recovery "SIGSTOP of a rank"
      done_with "SIGSTOP of a rank: the others end after RESHARD_MPI_TIMEOUT, nothing is published"
      return
    fi
    check_recovery "SIGSTOP of a rank, too late"
  done
  fail "$launcher: SIGSTOP of a rank: $try runs were over before"
}

mkfifo "$work/silence"
targets=$work/targets
mkdir "$targets"
set_namespace
"$make_model" "$model" --max-file-size 16MB >/dev/null
if [[ " ${launchers[*]} " == *" pm"* ]]; then
  start_slurm
fi
launcher=none
expect_outputs
expect_reports
test_no_launcher
for launcher in "${launchers[@]}"; do
  test_outputs
  test_reports
  test_other_options
  test_other_plugin
  test_rank_apart
  test_mounts
  test_kills
  test_silent_rank
done
echo "Passed in $SECONDS s: ${launchers[*]}"
