# Sends signal $2 to processes of a task of Fairlead, beside which this program runs. $1 says which:
# `batch` is the batch script, `steps` what it has started, `full` both; `step=N` are the processes of a step.
# A task without a batch script holds an allocation for steps from elsewhere.
mine=$(grep -lzxF "FAIRLEAD_TASK=$FAIRLEAD_TASK" /proc/[0-9]*/environ 2>/dev/null)
case $1 in
step=*)
  # shellcheck disable=SC2086
  for file in $(grep -lzxF "SLURM_STEP_ID=${1#step=}" $mine 2>/dev/null); do chosen="$chosen $(echo "$file" | tr -dc 0-9)"; done ;;
*)
  name() { comm=; read -r comm 2>/dev/null <"/proc/$1/comm"; }
  words() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline"; }
  below() { # what srun has started is left to srun, which passes signals on
    for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
      echo "$child"
      case $(words "$child") in */srun\ *) ;; *) below "$child" ;; esac
    done; }
  for file in $mine; do
    pid=$(echo "$file" | tr -dc 0-9)
    name "$pid"
    case $comm in slurm_script.*) ;; *) continue ;; esac
    parent=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status" 2>/dev/null)
    name "$parent"
    case $comm in slurm_script.*) ;; *) batch=$pid; break ;; esac
  done
  if [ -z "$batch" ]; then
    for file in $mine; do
      pid=$(echo "$file" | tr -dc 0-9)
      parent=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status" 2>/dev/null)
      case "$pid $parent" in "$$ "* | *" $$") continue ;; esac
      case $(words "$pid") in *"sleep 2147483647"*) ;; *) chosen="$chosen $pid" ;; esac
    done
  else
    case $1 in batch | full) chosen=$batch ;; esac
    case $1 in steps | full) chosen="$chosen $(below "$batch")" ;; esac
  fi ;;
esac
for pid in $chosen; do kill -s "$2" "$pid" 2>/dev/null && sent=yes; done
[ -n "$sent" ]
