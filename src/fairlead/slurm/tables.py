"""All options of all commands: parsing, refusals, `--help` and docs/slurm.md follow from these tables.

A line is an option and what it does. The mark ~ says that the option is accepted without effect, and why; ! says that
it is refused, and what serves instead.
"""

from __future__ import annotations

from fairlead.slurm.options import Table, table

ABOUT = """
-h, --help             | Show this help.
--usage                | Show this help.
-V, --version          | Show the version of Slurm that is resembled.
~ -v, --verbose        | There is nothing more to tell.
"""
ABOUT_LONG = ABOUT.replace("-h, --help  ", "--help      ")
"""For commands in which -h leaves out the header."""

JOB = """
-a, --array=INDICES    | Run a task for each index, such as 0-15:2,20%4.
-A, --account=NAME     | Queue of the job, if one has this name; else only shown by squeue, sacct and scontrol.
-b, --begin=TIME       | Start the job at this time or later.
-c, --cpus-per-task=N  | CPUs of each task.
--comment=TEXT         | A comment, which squeue, sacct and scontrol show.
-C, --constraint=LIST  | Run on nodes with these features: labels of nodes, as a&b, a|b or key=value.
-d, --dependency=LIST  | Start after other jobs: after, afterany, afterok, afternotok, aftercorr, singleton.
! --deadline=TIME      | jobs have no deadline; use --time and --begin
-D, --chdir=DIR        | Working directory. By default the present one.
-e, --error=FILE       | File for standard error, with patterns such as %j.
-x, --exclude=HOSTS    | Do not run on these nodes.
--exclusive[=user]     | Ask for all CPUs of each node.
--export=NAMES         | Variables to pass on: ALL, NONE, or names and NAME=VALUE.
--gpus-per-node=N      | GPUs on each node, as N or model:N.
--gpus-per-task=N      | GPUs for each task.
-G, --gpus=N           | GPUs of the job.
--gres=LIST            | Resources on each node: gpu:N, gpu:model:N, or another resource of nodes.
-H, --hold             | Submit the job held.
-i, --input=FILE       | File for standard input.
-J, --job-name=NAME    | Name of the job.
-L, --licenses=LIST    | Licences, as resources of nodes with these names.
-M, --clusters=NAMES   | Partition of Fairlead, which is a cluster of Slurm.
--mem=SIZE             | Memory on each node; MiB without a unit. 0 sets no limit.
--mem-per-cpu=SIZE     | Memory for each CPU.
--mem-per-gpu=SIZE     | Memory for each GPU.
--mail-type=TYPES      | Mail at BEGIN, END, FAIL, TIME_LIMIT or ALL, by sendmail of the node.
--mail-user=ADDRESS    | Receiver of these mails.
--mincpus=N            | At least this many CPUs on each node.
-n, --ntasks=N         | Number of tasks for which room is asked.
--ntasks-per-node=N    | Tasks on each node.
--ntasks-per-gpu=N     | Tasks for each GPU.
--cpus-per-gpu=N       | CPUs for each GPU.
-N, --nodes=N          | Number of nodes. Of a range, the smallest.
-w, --nodelist=HOSTS   | Run on these nodes.
-F, --nodefile=FILE    | Run on the nodes that a file lists.
--nice[=N]             | Lower the priority.
-o, --output=FILE      | File for standard output, with patterns such as %j, %A, %a, %x, %N and %u.
--open-mode=MODE       | `append` or `truncate` (the default) existing output.
-p, --partition=NAME   | Queue of the job, by its path or the end of it.
--priority=N           | Priority of the job.
-q, --qos=NAME         | Queue of the job, if one has this name; else only shown.
-Q, --quiet            | Print no messages.
--requeue              | Start again after the loss of a node (the default).
--no-requeue           | Fail when a node is lost.
--signal=SPEC          | [B:]SIGNAL[@SECONDS]: send a signal before the time limit ends. B: only to the batch shell.
-t, --time=TIME        | Time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.
--wckey=NAME           | A key, which squeue, sacct and scontrol show.
~ --acctg-freq=SPEC    | Agents measure every task.
~ --cpu-freq=SPEC      | Frequencies are left to the nodes.
~ --delay-boot=MIN     | Pools start nodes when work waits for them.
~ -m, --distribution=S | Nodes are filled one after the other.
~ --gres-flags=OPTS    | GPUs are chosen by the placement of the queue.
~ --gpu-bind=SPEC      | Each task sees the GPUs of its job.
~ --gpu-freq=SPEC      | Frequencies are left to the nodes.
~ --hint=TYPE          | Tasks are not bound to cores.
~ --mem-bind=SPEC      | Tasks are not bound to memory.
~ -k, --no-kill[=off]  | The loss of a node ends the job.
~ --ntasks-per-core=N  | Cores have no threads of their own here: a CPU is what the agent offers.
~ --ntasks-per-socket=N | Nodes have no sockets here.
~ -O, --overcommit     | Give fewer CPUs with --cpus-per-task instead.
~ -s, --oversubscribe  | CPUs are never shared between jobs.
~ --power=FLAGS        | There is no power management of jobs.
~ --profile=VALUE      | Agents measure every task.
~ --propagate[=LIMITS] | Tasks have the limits of the agent.
~ --spread-job         | Where tasks go is set for the partition, with `place`.
~ --switches=SPEC      | Use labels and `near`.
~ --time-min=TIME      | Backfill uses --time, and what it learned.
~ --use-min-nodes      | A range of nodes already means the smallest number.
~ --mcs-label=NAME     | Jobs of other users are hidden by default.
~ --ignore-pbs         | Lines of other schedulers are always ignored.
~ -S, --core-spec=N    | What an agent offers is free for jobs.
~ --thread-spec=N      | What an agent offers is free for jobs.
! --bb=SPEC            | there are no burst buffers; copy files in the script
! --bbf=FILE           | there are no burst buffers; copy files in the script
! --cluster-constraint=L | name a partition of Fairlead with --clusters
! --container=PATH     | start the container in the script
! --contiguous         | nodes have no order; use labels with --constraint
! -B, --extra-node-info=S | nodes have no sockets here; ask for CPUs
! --sockets-per-node=N | nodes have no sockets here; ask for CPUs
! --cores-per-socket=N | nodes have no sockets here; ask for CPUs
! --threads-per-core=N | a CPU is what the agent offers; ask for CPUs
! --gpus-per-socket=N  | nodes have no sockets here; use --gpus-per-node
! --gid=GROUP          | jobs run with the groups of their user
! --uid=USER           | jobs run as the user of the token
! --reboot             | nodes are not rebooted for jobs
! --reservation=NAME   | there are no reservations; ask for nodes with --constraint
! --tmp=SIZE           | disks are not counted; make it a resource of nodes and use --gres
"""

SBATCH = table(
    "sbatch",
    "[OPTIONS…] SCRIPT [ARGUMENTS…]",
    "Submit a script. Its #SBATCH lines have options too; those of the command line go first.",
    JOB
    + """
--parsable             | Print only the id.
-W, --wait             | Wait for the end of the job, and exit with its status.
--test-only            | Submit nothing; tell when the job would start.
--wrap=COMMAND         | Submit this command line instead of a script.
--export-file=FILE     | Take variables from a file with NAME=VALUE, separated by NUL.
! --get-user-env       | the environment is that of the submission; source a profile in the script
"""
    + ABOUT,
    permuted=False,
    code=255,
)

RUN = """
-l, --label            | Begin each line of output with the number of its task.
-u, --unbuffered       | Pass output on as it comes.
-K, --kill-on-bad-exit[=N] | End the step when a task fails.
-W, --wait=SECONDS     | After the first task has ended, wait this long, then end the others.
--multi-prog           | The file has a program for each task.
--pty                  | Give the task a terminal.
-r, --relative=N       | Begin with this node of the allocation.
--jobid=ID             | Run in the allocation of this job.
--overlap              | Share the resources of other steps.
--exact                | Use only the resources that the step asks for.
--het-group=N          | Run on this part of a heterogeneous job.
-I, --immediate[=SECONDS] | Give up if the allocation is not there at once, or after these seconds.
~ --cpu-bind=SPEC      | Tasks are not bound to cores.
~ --bcast[=PATH]       | The program is read where it is.
~ --compress[=LIBRARY] | The program is read where it is.
~ --send-libs[=yes]    | Libraries are read where they are.
~ --mpi=TYPE           | Tasks get the variables of Slurm; start MPI with mpirun and the hosts of SLURM_JOB_NODELIST.
~ -X, --disable-status | Ctrl-C ends the step.
~ --quit-on-interrupt  | Ctrl-C ends the step.
~ -E, --preserve-env   | Options go before variables.
~ --resv-ports[=N]     | Ports are not reserved.
~ --slurmd-debug=LEVEL | There is nothing more to tell.
~ -T, --threads=N      | Tasks are started on all nodes at once.
! --epilog=PROGRAM     | run it in the script
! --prolog=PROGRAM     | run it in the script
! --task-epilog=PROGRAM | run it in the task
! --task-prolog=PROGRAM | run it in the task
! -Z, --no-allocate    | the server places every job
"""
SRUN = table(
    "srun",
    "[OPTIONS…] PROGRAM [ARGUMENTS…]",
    "Run tasks in the allocation of the job, or allocate, run, and give back.",
    JOB + RUN + ABOUT,
    permuted=False,
    code=255,
)
SALLOC = table(
    "salloc",
    "[OPTIONS…] [PROGRAM [ARGUMENTS…]]",
    "Allocate nodes, run a program or a shell here, and give them back.",
    JOB
    + """
--no-shell             | Allocate, and return at once.
-I, --immediate[=SECONDS] | Give up if the allocation is not there at once, or after these seconds.
~ --bell               | The terminal does not ring.
~ --no-bell            | The terminal does not ring.
~ -K, --kill-command[=SIGNAL] | The program ends by itself when the allocation does.
"""
    + ABOUT,
    permuted=False,
    code=255,
)

SQUEUE = table(
    "squeue",
    "[OPTIONS…]",
    "List jobs that wait or run.",
    """
-A, --account=NAMES    | Only jobs of these accounts.
-h, --noheader         | Leave out the header.
-i, --iterate=SECONDS  | Show the list again and again.
-j, --jobs, --job[=IDS] | Only these jobs: 7, 7_3, or several with commas.
--json                 | Print JSON.
-l, --long             | More columns.
-L, --licenses=NAMES   | Only jobs with these licences.
-M, --clusters, --cluster=NAMES | Partition of Fairlead; `all` is the default one.
--me                   | Only your jobs.
-n, --name=NAMES       | Only jobs with these names.
-o, --format=FORMAT    | Columns, such as '%.8i %9P %t'.
-O, --Format=FIELDS    | Columns by name, such as JobID:10,State.
-p, --partition=NAMES  | Only jobs in these queues.
-q, --qos=NAMES        | Only jobs with these QOS.
-r, --array            | A line for each task of an array.
--array-unique         | A line for each waiting task of an array.
-S, --sort=FIELDS      | Order by fields, such as -S,i.
--start                | Expected start times of waiting jobs.
-s, --steps, --step[=STEPS] | List steps.
-t, --states=STATES    | Only these states; `all` for all of them.
-u, --user, --users=NAMES | Only jobs of these users.
-w, --nodelist=HOSTS   | Only jobs on these nodes.
~ -a, --all            | No queue is hidden.
~ --hide               | No queue is hidden.
~ --federation         | There are no federations.
~ --local              | There are no federations.
~ --sibling            | There are no federations.
~ --noconvert          | Sizes are shown as they were asked for.
! -R, --reservation=NAME | there are no reservations
! --yaml               | use --json
"""
    + ABOUT_LONG,
)
SCANCEL = table(
    "scancel",
    "[OPTIONS…] [JOB[_INDEX][.STEP]…]",
    "Cancel jobs, tasks of arrays or steps, or send them a signal.",
    """
-A, --account=NAME     | Only jobs of this account.
-b, --batch            | With --signal: only the batch script.
-f, --full             | With --signal: the batch script and what it has started.
-i, --interactive      | Ask before each job.
--me                   | Only your jobs.
-M, --clusters=NAME    | Partition of Fairlead.
-n, --name, --jobname=NAME | Only jobs with this name.
-p, --partition=NAME   | Only jobs in this queue.
-Q, --quiet            | Do not report jobs that are over.
-q, --qos=NAME         | Only jobs with this QOS.
-s, --signal=NAME      | Send this signal to what the batch script has started. KILL ends the job.
-t, --state=STATE      | Only jobs in this state: PENDING, RUNNING or SUSPENDED.
-u, --user=NAME        | Only jobs of this user.
-w, --nodelist=HOSTS   | Only jobs on these nodes.
--wckey=NAME           | Only jobs with this key.
~ -c, --ctld           | The server always sends signals.
~ -H, --hurry          | There are no burst buffers.
! -R, --reservation=NAME | there are no reservations
! --sibling=CLUSTER    | there are no federations
"""
    + ABOUT.replace("-h, --help  ", "--help      "),
)
SINFO = table(
    "sinfo",
    "[OPTIONS…]",
    "List queues and nodes.",
    """
-d, --dead             | Only nodes that do not answer.
-h, --noheader         | Leave out the header.
-i, --iterate=SECONDS  | Show the list again and again.
--json                 | Print JSON.
-l, --long             | More columns.
-M, --clusters=NAME    | Partition of Fairlead.
-n, --nodes=HOSTS      | Only these nodes.
-N, --Node             | A line for each node and queue.
-o, --format=FORMAT    | Columns, such as '%9P %t %N'.
-O, --Format=FIELDS    | Columns by name, such as NodeList:20,StateLong.
-p, --partition=NAMES  | Only these queues.
-r, --responding       | Only nodes that answer.
-R, --list-reasons     | List why nodes are drained or down.
-s, --summarize        | A line for each queue.
-S, --sort=FIELDS      | Order by fields, such as P,-t.
-t, --states=STATES    | Only nodes in these states.
~ -a, --all            | No queue is hidden.
~ --hide               | No queue is hidden.
~ -e, --exact          | Lines are always exact.
~ --federation         | There are no federations.
~ --local              | There are no federations.
~ --noconvert          | Sizes are in MiB.
! -T, --reservation    | there are no reservations
! --yaml               | use --json
"""
    + ABOUT_LONG,
)
SACCT = table(
    "sacct",
    "[OPTIONS…]",
    "List jobs of the past and of the present.",
    """
-a, --allusers         | Jobs of all users that you may see.
-A, --accounts=NAMES   | Only jobs of these accounts.
-b, --brief            | Only id, state and exit code.
--delimiter=TEXT       | Text between the fields of -p and -P.
-D, --duplicates       | All attempts of requeued jobs.
-e, --helpformat       | List the fields.
-E, --endtime=TIME     | Only jobs that were there before this time.
-j, --jobs=IDS         | Only these jobs.
--json                 | Print JSON.
-l, --long             | Many fields.
-L, --allclusters      | The partition of Fairlead.
-M, --clusters=NAMES   | Partition of Fairlead; `all` is the default one.
-n, --noheader         | Leave out the header.
--name=NAMES           | Only jobs with these names.
-N, --nodelist=HOSTS   | Only jobs on these nodes.
-o, --format=FIELDS    | Fields, such as JobID,State%20.
-p, --parsable         | Fields with | after each.
-P, --parsable2        | Fields with | between them.
-q, --qos=NAMES        | Only jobs with these QOS.
-r, --partition=NAMES  | Only jobs in these queues.
-s, --state=STATES     | Only jobs in these states.
-S, --starttime=TIME   | Only jobs that were there at this time or later. By default since midnight.
-u, --user, --uid=NAMES | Only jobs of these users.
--units=UNIT           | Sizes in K, M, G or T.
-W, --wckeys=NAMES     | Only jobs with these keys.
-X, --allocations      | Jobs without their steps.
-x, --associations=IDS | Only jobs of these associations, which are queues.
~ -B, --batch-script   | Scripts are not stored in the history.
~ --env-vars           | Environments are not stored in the history.
~ --array              | A line for each task is the default.
~ -c, --completion     | There is one history.
~ --federation         | There are no federations.
~ --local              | There are no federations.
~ --noconvert          | Sizes are in KiB, MiB or GiB.
~ --use-local-uid      | Users are known by name.
~ -T, --truncate       | Times are not cut off.
! -F, --flags=LIST     | the scheduler of a job is not stored
! -g, --gid=GROUPS     | groups are not stored; use --user
! -i, --nnodes=N       | use --format=JobID,NNodes
! -I, --ncpus=N        | use --format=JobID,NCPUS
! -k, --timelimit-min=T | use --format=JobID,Timelimit
! -K, --timelimit-max=T | use --format=JobID,Timelimit
! -R, --reason=NAMES   | use --format=JobID,Reason
! --whole-hetjob=YES   | parts of a job are always shown together
! --yaml               | use --json
"""
    + ABOUT,
)
SCONTROL = table(
    "scontrol",
    "[OPTIONS…] COMMAND [WORDS…]",
    "show job|step|node|partition|config|hostnames|hostlist, hold, release, requeue, update, top, token, ping, "
    "write batch_script.",
    """
-d, --details          | Show more of a job.
-M, --clusters, --cluster=NAME | Partition of Fairlead.
-o, --oneliner         | An entry a line.
-Q, --quiet            | Print no messages.
--json                 | Print JSON.
~ -a, --all            | No queue is hidden.
~ --hide               | No queue is hidden.
~ -F, --future         | Nodes that may come are in `fairlead pool list`.
~ --federation         | There are no federations.
~ --local              | There are no federations.
~ --sibling            | There are no federations.
~ -u, --uid=USER       | Changes are made by the user of the token.
! --yaml               | use --json
"""
    + ABOUT,
)
SACCTMGR = table(
    "sacctmgr",
    "[OPTIONS…] list|show ENTITY [WORDS…]",
    "list user|account|association|qos|cluster: queues in the words of accounts. Nothing can be changed here.",
    """
-n, --noheader         | Leave out the header.
-p, --parsable         | Fields with | after each.
-P, --parsable2        | Fields with | between them.
-s, --associations     | Show associations too.
~ -i, --immediate      | Nothing is changed.
~ -Q, --quiet          | There is nothing more to tell.
~ -r, --readonly       | Nothing is changed.
~ -o, --oneliner       | Lists have a line an entry.
"""
    + ABOUT,
)
SSHARE = table(
    "sshare",
    "[OPTIONS…]",
    "List the shares of queues, in the words of accounts.",
    """
-a, --all              | All users.
-A, --accounts=NAMES   | Only these accounts.
-l, --long             | More columns.
-M, --clusters=NAME    | Partition of Fairlead.
-m, --partition        | The partitions of associations.
-n, --noheader         | Leave out the header.
-o, --format=FIELDS    | Fields, such as Account%30,FairShare.
-p, --parsable         | Fields with | after each.
-P, --parsable2        | Fields with | between them.
-u, --users=NAMES      | Only these users.
-U, --Users            | Only users.
-e, --helpformat       | List the fields.
"""
    + ABOUT,
)
SPRIO = table(
    "sprio",
    "[OPTIONS…]",
    "List the priorities of waiting jobs.",
    """
-h, --noheader         | Leave out the header.
-j, --jobs=IDS         | Only these jobs.
-l, --long             | More columns.
-M, --cluster=NAME     | Partition of Fairlead.
-n, --norm             | Priorities as parts of 1.
-o, --format=FORMAT    | Columns, such as '%.15i %9r %.10Y'.
-p, --partition=NAMES  | Only jobs in these queues.
-u, --user=NAMES       | Only jobs of these users.
-S, --sort=FIELDS      | Order by fields.
-w, --weights          | Weights, which Fairlead does not have: 1.
"""
    + ABOUT_LONG,
)
SSTAT = table(
    "sstat",
    "[OPTIONS…]",
    "Show the use of running steps.",
    """
-a, --allsteps         | All steps of a job.
-e, --helpformat       | List the fields.
-i, --pidformat        | Processes.
-j, --jobs=IDS         | These jobs.
-n, --noheader         | Leave out the header.
-o, --format=FIELDS    | Fields, such as JobID,MaxRSS.
-p, --parsable         | Fields with | after each.
-P, --parsable2        | Fields with | between them.
~ --noconvert          | Sizes are in KiB.
"""
    + ABOUT,
)
TABLES: tuple[Table, ...] = (
    SBATCH, SRUN, SALLOC, SQUEUE, SCANCEL, SINFO, SACCT, SCONTROL, SACCTMGR, SSHARE, SPRIO, SSTAT,
)  # fmt: skip
