# Runs a batch script of sbatch on the first node of its job; on the other nodes it holds the allocation.
# $1 sets the names of the files, $2 is the number of the parts of the script, which follow; then its arguments.
[ "${RANK:-0}" = 0 ] || exec sleep 2147483647
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
SLURM_JOB_ID=$FAIRLEAD_JOB
if [ -n "$SLURM_ARRAY_TASK_COUNT" ]; then
  export SLURM_ARRAY_JOB_ID="$FAIRLEAD_JOB" SLURM_ARRAY_TASK_ID="$FAIRLEAD_INDEX"
  SLURM_JOB_ID=${FAIRLEAD_JOB}_$FAIRLEAD_INDEX
fi
fold() { printf %s "$1" | awk -v RS=, '
  function part() { if (before == "") return
    text = low == high ? low : low "-" high; group = group == "" ? text : group "," text; many = many || low != high }
  function close_group() { part(); if (before == "") return
    all = all (all == "" ? "" : ",") before (group ~ /[,-]/ ? "[" group "]" : group); group = "" }
  { match($0, /[0-9]*$/); name = substr($0, 1, RSTART - 1); number = substr($0, RSTART)
    if (number == "") { close_group(); before = ""; all = all (all == "" ? "" : ",") $0; next }
    if (name == before && number + 0 == high + 1 && length(number) >= length(high)) { high = number; next }
    if (name == before && number + 0 > high + 0 && length(number) >= length(high)) part(); else close_group()
    before = name; low = high = number }
  END { close_group(); printf "%s", all }'; }
case ${FAIRLEAD_NODES:=$FAIRLEAD_NODE} in
*,*) SLURM_JOB_NODELIST=$(fold "$FAIRLEAD_NODES") ;;
*) SLURM_JOB_NODELIST=$FAIRLEAD_NODE ;;
esac
part=0 first=1 # of a heterogeneous job, each part has its nodes
while [ "$part" -lt "${SLURM_HET_SIZE:-0}" ]; do
  eval "last=\$((first + SLURM_JOB_NUM_NODES_HET_GROUP_$part - 1))"
  nodes=$(fold "$(printf %s "$FAIRLEAD_NODES" | cut -d, "-f$first-$last")")
  [ "$part" -gt 0 ] || SLURM_JOB_NODELIST=$nodes
  export "SLURM_JOB_NODELIST_HET_GROUP_$part=$nodes"
  part=$((part + 1)) first=$((last + 1))
done
export FAIRLEAD_NODES SLURM_JOB_ID SLURM_JOBID="$SLURM_JOB_ID" SLURM_JOB_NODELIST SLURM_NODELIST="$SLURM_JOB_NODELIST"
export SLURMD_NODENAME="$FAIRLEAD_NODE" SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_GTIDS=0 SLURM_TASK_PID=$$
SLURM_JOB_START_TIME=$(date +%s); export SLURM_JOB_START_TIME
[ -z "$SLURM_JOB_TIME_LIMIT" ] || export SLURM_JOB_END_TIME=$((SLURM_JOB_START_TIME + SLURM_JOB_TIME_LIMIT))
[ "${FAIRLEAD_ATTEMPT:-1}" = 1 ] || export SLURM_RESTART_COUNT=$((FAIRLEAD_ATTEMPT - 1))
[ -z "$CUDA_VISIBLE_DEVICES" ] || export SLURM_JOB_GPUS="$CUDA_VISIBLE_DEVICES" SLURM_STEP_GPUS="$CUDA_VISIBLE_DEVICES"
exec 3>&2; export FAIRLEAD_STEPS=/proc/$$/fd/3 # the log of this task, in which steps are noted
eval "$1" || exit 1
parts=$2; shift 2
script=$(mktemp "${TMPDIR:-/tmp}/slurm_script.XXXXXX") || exit 1
while [ "$parts" -gt 0 ]; do printf %s "$1"; shift; parts=$((parts - 1)); done >"$script"
chmod 700 "$script"
mail() {
  case ",$SLURM_MAIL_TYPE," in *",$1,"* | *,ALL,*) ;; *) return ;; esac
  printf 'To: %s\nSubject: Slurm Job_id=%s Name=%s %s\n\n' \
    "${SLURM_MAIL_USER:-$USER}" "$SLURM_JOB_ID" "$SLURM_JOB_NAME" "$2" | PATH=$PATH:/usr/sbin sendmail -t 2>/dev/null
}
mail BEGIN Began
below() { # what srun has started is left to srun, which passes signals on
  for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
    echo "$child"
    case $(tr '\0' ' ' 2>/dev/null <"/proc/$child/cmdline") in */srun\ *) ;; *) below "$child" ;; esac
  done; }
trap : TERM INT HUP USR1 USR2 CONT
"$script" "$@" <&0 3>&- &
batch=$!
if [ -n "$SLURM_WARN_AFTER" ]; then
  (trap - TERM; sleep "$SLURM_WARN_AFTER" & trap "kill $!" TERM; wait $! || exit
   # shellcheck disable=SC2046
   if [ -n "$SLURM_WARN_BATCH" ]; then kill -s "$SLURM_WARN_SIGNAL" "$batch"
   else kill -s "$SLURM_WARN_SIGNAL" $(below "$batch"); fi) <&- >/dev/null 2>&1 &
  warner=$!
fi
wait "$batch"; code=$?
while kill -0 "$batch" 2>/dev/null; do wait "$batch"; code=$?; done
[ -z "$warner" ] || kill "$warner" 2>/dev/null
rm -f "$script"
if [ "$code" = 0 ]; then mail END Ended; else mail END Failed; mail FAIL Failed; fi
exit "$code"
