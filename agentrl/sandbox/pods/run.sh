#!/bin/sh
# The runner inside a sandbox's pod: POSIX sh and the usual small programs (busybox will do). It is mounted read-only, so
# images need nothing of ours. Each operation is one command of `pods/exec`:
#
#   run pause          the pod's first process: adopts orphans, waits
#   run exec ID CAP    one command. Stdin: the job, then the command's stdin, then what a session hands to it
#   run files          a script of the functions below. Stdin: the script, then contents of files
#   run kill_all | freeze | thaw | probe | begun
#
# Stdin begins with a line: a secret word, and how many bytes of each part follow (-1: there is none). What is written
# ends with a line that begins with that word, on stdout and on stderr: only such an end is believed. Stdin stays open as
# long as somebody is there: at its end, or at a line, the command is killed with all that it started.

umask 022
bin=/.agentrl/bin/run
top=/.agentrl/state
own=$top/own
[ -d "$top" ] || { echo "no $top: this is not a sandbox's pod" >&2; exit 1; }

# --- processes

# Machinery are this script's processes: each operation has a session whose leader has no parent in here. Commands get
# sessions of their own (setsid), and a session cannot be joined, so nothing that they start passes for machinery.

# Sets $found to all other living processes, as words pid:start. Forks nothing: it works where nothing can be forked.
scan() {
  scan_own=" " scan_all="" found=""
  for scan_path in /proc/[0-9]*; do
    { read -r scan_line <"$scan_path/stat"; } 2>/dev/null || continue
    set -- ${scan_line##*) }
    [ "$2" != 0 ] || scan_own="$scan_own$4 "
    case $1 in Z | X) continue ;; esac
    scan_all="$scan_all ${scan_path#/proc/}:${20}:$4"
  done
  for scan_word in $scan_all; do
    case $scan_own in *" ${scan_word##*:} "*) ;; *) found="$found ${scan_word%:*}" ;; esac
  done
}

# Sets $since to the pids among them that are not in $earlier, and $number to how many.
scan_since() {
  scan
  since="" number=0
  for scan_word in $found; do
    case "$earlier " in *" $scan_word "*) ;; *) since="$since ${scan_word%:*}" number=$((number + 1)) ;; esac
  done
}

# Kill them, and what they start meanwhile: stopped first, so that they cannot run away. Sets $killed to how many. What
# forks faster than that is killed by the kernel at one stroke, with all else in here, this operation's helpers included:
# only where process 1 is ours, for then nothing but the pod is in here.
kill_since() {
  killed=0 tries=0
  while scan_since && [ -n "$since" ]; do
    kill -STOP $since 2>/dev/null
    kill -KILL $since 2>/dev/null
    [ "$number" -le "$killed" ] || killed=$number
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { [ "$tries" -lt 120 ] && grep -q "$bin" /proc/1/cmdline && kill -KILL -1; }
    [ "$tries" -lt 200 ] || break
  done
}

# Sets $oom to how often the memory limit has killed (cgroup v2, v1).
count_oom() {
  oom=0
  for oom_file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$oom_file" ] || continue
    while read -r oom_key oom_value; do
      [ "$oom_key" != oom_kill ] || oom=$oom_value
    done <"$oom_file"
  done
}

# --- one command

# Pass the first $cap bytes on, and write to file $1 how many more came.
capture() {
  head -c "$cap"
  wc -c >"$1"
}

# Read $1 bytes of stdin to file $2.
take() { head -c "$1" <&6 >"$2" && [ "$(wc -c <"$2")" -eq "$1" ]; }

# Wait for a word, or for the end of stdin: then nobody is there any more.
watch() {
  exec 3>&- 4>&-
  read -r word <&6
  : >"$dir/killed"
  kill_since
}

# Sets $code and $signal of the job that has ended. `wait` tells 128 + signal for both; `jobs` tells them apart: bash only
# before `wait` has taken notice, the others after.
read_end() {
  wait "$job"
  code=$? signal=0
  while [ "$code" -gt 128 ] && [ -d "/proc/$job" ]; do # only interrupted
    wait "$job"
    code=$?
  done
  [ "$code" -gt 128 ] || return
  if [ -n "${BASH_VERSION:-}" ]; then # it may have been interrupted by the end itself
    wait "$job"
    again=$?
    [ "$again" -eq 127 ] || code=$again
  fi
  jobs -l >>"$dir/jobs"
  line=""
  while read -r one; do
    case " $one " in *" $job "*) line=$one ;; esac
  done <"$dir/jobs"
  case $line in
  *"Done("*) line=${line#*Done(} code=${line%%)*} ;;
  *"Exit "*) line=${line#*Exit } code=${line%% *} ;;
  *) signal=$((code - 128)) code=-1 ;;
  esac
}

run_exec() {
  id=$1 cap=$2 dir=$own/$1
  exec 3>&1 4>&2 6<&0
  read -r secret job_bytes in_bytes hand_bytes || exit 1
  last=""
  { read -r last <"$own/last"; } 2>/dev/null
  [ "$last" != "$id" ] || { printf '%s again\n' "$secret" >&4; exit 0; }
  exec 2>"$own/problem" || { printf '%s problem cannot write %s\n' "$secret" "$own" >&4; exit 0; }
  in=/dev/null
  if ! {
    mkdir "$dir" && mkfifo "$dir/out" "$dir/err" "$dir/out.kept" "$dir/err.kept" && take "$job_bytes" "$dir/job" &&
      { [ "$in_bytes" -lt 0 ] || { in=$dir/in && take "$in_bytes" "$dir/in"; }; } &&
      { [ "$hand_bytes" -lt 0 ] || { take "$hand_bytes" "$dir/hand" && : >"$dir/handed"; }; } &&
      echo "$id" >"$own/last"
  }; then
    problem=""
    read -r problem <"$own/problem"
    printf '%s problem %s\n' "$secret" "$problem" >&4
    rm -rf "$dir"
    exit 0
  fi
  printf '%s begun\n' "$secret" >&4
  # `cat` passes on what it has at once; what keeps the beginning does so at its input's end, which ending `cat` brings.
  cat <"$dir/out" >"$dir/out.kept" 3>&- 4>&- &
  out_cat=$!
  cat <"$dir/err" >"$dir/err.kept" 3>&- 4>&- &
  err_cat=$!
  capture "$dir/out.more" <"$dir/out.kept" >&3 4>&- &
  out=$!
  capture "$dir/err.more" <"$dir/err.kept" >&4 3>&- &
  err=$!
  count_oom
  oom_before=$oom
  read -r began _ </proc/uptime
  [ -z "${BASH_VERSION:-}" ] || trap 'jobs -l >>"$dir/jobs"' CHLD
  scan
  earlier=$found
  # What runs in the background ignores SIGINT and SIGQUIT; only env of newer coreutils, or bash, can undo that.
  reset=""
  [ ! -e "$own/env" ] || reset="env --default-signal=INT,QUIT"
  (
    trap - INT QUIT
    unset KUBERNETES_PORT KUBERNETES_PORT_443_TCP KUBERNETES_PORT_443_TCP_ADDR KUBERNETES_PORT_443_TCP_PORT \
      KUBERNETES_PORT_443_TCP_PROTO KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT KUBERNETES_SERVICE_PORT_HTTPS
    exec 3>&- 4>&- 6<&-
    exec $reset setsid sh "$dir/job"
  ) <"$in" >"$dir/out" 2>"$dir/err" &
  job=$!
  watch &
  watcher=$!
  read_end
  kill -KILL "$watcher"
  scan_since
  was_killed=0
  if [ -e "$dir/killed" ]; then
    was_killed=1
    kill_since
    scan_since
  fi
  read -r ended _ </proc/uptime
  if [ "$number" -gt 0 ]; then # they may hold the pipes: what was written comes soon, the end may never
    for pause in 0.02 0.03 0.05 0.1; do
      [ -d "/proc/$out_cat" ] || [ -d "/proc/$err_cat" ] || break
      sleep "$pause"
    done
    kill "$out_cat" "$err_cat"
  fi
  wait "$out" "$err"
  count_oom
  out_more=0 err_more=0 hand=0
  { read -r out_more <"$dir/out.more"; } 2>/dev/null
  { read -r err_more <"$dir/err.more"; } 2>/dev/null
  [ ! -e "$dir/handed" ] || hand=$(wc -c <"$dir/handed")
  [ "$hand" -le 1048576 ] || hand=0
  printf '\n%s end\n' "$secret" >&3
  printf '\n%s end %s %s %s %s %s %s %s %s %s %s\n' "$secret" "$code" "$signal" "$was_killed" "$((oom - oom_before))" \
    "$number" "$out_more" "$err_more" "$began" "$ended" "$((hand))" >&4
  [ "$hand" -eq 0 ] || head -c "$hand" "$dir/handed" >&4
  rm -rf "$dir"
}

# --- files: what a script may call. Each ends the script if it fails, and says why on stderr.

answer() { printf '\n%s answer %s\n' "$secret" "$*" >&2; }

# Replace whatever file is at path $1; mode $2; $3 bytes of stdin.
put_file() {
  folder=${1%/*}/
  [ -d "$folder" ] || mkdir -p "$folder" || exit 1
  [ ! -d "$1" ] || [ -L "$1" ] || { echo "$1: Is a directory" >&2; exit 1; }
  if ! { head -c "$3" >"$folder.agentrl-$$" && [ "$(wc -c <"$folder.agentrl-$$")" -eq "$3" ] &&
    chmod "$2" "$folder.agentrl-$$" && mv -f "$folder.agentrl-$$" "$1"; }; then
    rm -f "$folder.agentrl-$$"
    exit 1
  fi
}

# Append $2 bytes of stdin to path $1, which put_file has begun.
more_file() { head -c "$2" >>"$1" || exit 1; }

# Make folder $1, unless it is there; mode $2.
put_folder() { { [ -d "$1" ] || mkdir -p "$1"; } && chmod "$2" "$1" || exit 1; }

# Make path $1 a link to $2.
put_link() { { [ -d "${1%/*}/" ] || mkdir -p "${1%/*}/"; } && rm -rf "$1" && ln -s "$2" "$1" || exit 1; }

# Make path $1 an empty folder, whatever was there; mode $2. A mount stays, and is emptied.
clear_folder() {
  if [ -d "$1" ] && [ ! -L "$1" ]; then
    find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf {} + || exit 1
  else
    { rm -rf "$1" && mkdir -p "$1"; } || exit 1
  fi
  chmod "$2" "$1" || exit 1
}

# Answer the size of regular file $1, or "none"; write at most $3 bytes of it from offset $2. With $4: all or nothing.
get_file() {
  [ -f "$1" ] && size=$(stat -L -c %s "$1") || { answer none; return 0; }
  answer "$size"
  [ -z "$4" ] || [ "$size" -le "$3" ] || return 0
  if [ "$2" = 0 ]; then head -c "$3" "$1"; else tail -c "+$(($2 + 1))" "$1" | head -c "$3"; fi || exit 1
}

# Write a line for path $1 and each thing below it, at most $2: type and mode in hex, size, path.
list_files() {
  { [ -f "$1" ] || [ -d "$1" ]; } && [ ! -L "$1" ] || { answer none; return 0; }
  answer found
  find "$1" -exec stat -c '%f %s %n' {} + | head -n "$2"
}

# Write what lies in folder $1 as a tar, without places that are not the image's.
pack_folder() {
  command -v tar >/dev/null || { echo "the image has no tar" >&2; exit 1; }
  cd "$1" || exit 1
  set --
  for skipped in .agentrl proc sys dev tests logs; do
    [ "$PWD" != / ] || set -- "$@" "--exclude=./$skipped"
  done
  tar -cf - "$@" . || exit 1
}

# Put a tar of $2 bytes in folder $1.
unpack_folder() {
  mkdir -p "$1" || exit 1
  head -c "$2" | tar -xpf - -C "$1" || exit 1
}

run_files() {
  export LC_ALL=C # whoever reads what went wrong knows it in English
  read -r secret script_bytes || exit 1
  script=$(head -c "$script_bytes" && echo .)
  (eval "${script%.}")
  finish $?
}

# --- the rest

# End an operation: its status, and what it answers.
finish() {
  printf '\n%s end\n' "$secret"
  printf '\n%s end %s\n' "$secret" "$*" >&2
}

run_pause() {
  chmod 700 "$top" 2>/dev/null # not ours where the pod has no root; then all in it is one user's anyway
  mkdir -p -m 700 "$own"
  env --default-signal=INT,QUIT true 2>/dev/null && : >"$own/env"
  for folder in /logs /logs/verifier /logs/agent /logs/artifacts; do
    mkdir -p "$folder" && chmod 777 "$folder"
  done 2>/dev/null
  while :; do
    sleep 86400 &
    wait $!
  done
}

run_freeze() {
  seen="none"
  scan
  while [ "$found" != "$seen" ]; do # who was just forked is met the next time
    seen=$found
    for word in $found; do kill -STOP "${word%:*}"; done 2>/dev/null
    scan
  done
}

operation=$1
shift
case $operation in
pause) run_pause ;;
exec) run_exec "$@" ;;
files) run_files ;;
*)
  read -r secret _ || exit 1
  case $operation in
  kill_all)
    earlier=""
    kill_since
    finish "$killed"
    ;;
  freeze)
    run_freeze
    set -- $found
    finish $#
    ;;
  thaw)
    scan
    for word in $found; do kill -CONT "${word%:*}"; done 2>/dev/null
    finish 0
    ;;
  begun)
    last=none
    { read -r last <"$own/last"; } 2>/dev/null
    finish "$last"
    ;;
  probe)
    missing=""
    for program in setsid head wc mkfifo mkdir mv rm chmod ln stat find tail sleep; do
      command -v "$program" >/dev/null || missing="$missing $program"
    done
    [ -d "$own" ] || missing="$missing $own"
    finish "$missing"
    ;;
  esac
  ;;
esac
