# Ends the executions of a host that has ended, on a system without `/proc` and marks; see
# host_watcher.sh for one with them. The host holds the other end of standard input, and nothing else
# does: the end of input is the end of the host, also by SIGKILL.
#
# Arguments: the name of the tag variable, then the live executions, each as <id>:<process id>; 0
# until the process is known.
# Input: lines `+ <id>:<process id>` and `- <id>:<process id>`.
trap '' HUP INT QUIT TERM
PATH=${PATH:+$PATH:}/usr/bin:/bin
for tool in awk ps sleep uname; do
    command -v "$tool" >/dev/null || exit 127
done
tag=$1
shift
live=" $* "
while read -r change token; do
    id=${token%:*}
    case $live in
        *" $id:"*)
            after=${live#*" $id:"}
            live="${live%%" $id:"*} ${after#* }"
            ;;
    esac
    case $change in +) live="$live$token " ;; esac
done
[ "$live" != ' ' ] && [ "$live" != '  ' ] || exit 0

# Only macOS: the environment follows the command line. Programs of Apple do not show theirs.
environments() {
    case $(uname) in Darwin) ps -A -E -ww -o pid=,command= ;; esac
}

# The living processes of the executions: the leaders, their groups, all that were found before and
# the groups that these have created, processes with the tag, and the children of all these.
known=' '
members() {
    {
        ps -A -o pid=,ppid=,pgid=,stat=
        echo environments
        environments
    } | awk -v live="$live" -v known="$known" -v tag="$tag" -v own="$$" '
        BEGIN {
            count = split(live, tokens, " ")
            for (i = 1; i <= count; i++) {
                split(tokens[i], parts, ":")
                tags[tag "=" parts[1]] = 1
                if (parts[2] > 0) seed[parts[2]] = 1
            }
            count = split(known, pids, " ")
            for (i = 1; i <= count; i++) seed[pids[i]] = 1
        }
        $1 == "environments" { second = 1; next }
        !second { parent[$1] = $2; group[$1] = $3; alive[$1] = $4 !~ /^Z/; next }
        { for (i = 2; i <= NF; i++) if ($i in tags) seed[$1] = 1 }
        END {
            do {
                more = 0
                for (pid in parent) {
                    if (pid in found || pid == own) continue
                    if (pid in seed || group[pid] in seed || parent[pid] in found) {
                        found[pid] = 1
                        more = 1
                    }
                }
            } while (more)
            for (pid in found) if (alive[pid]) print pid
        }'
}

# Stops all processes, so that none of them starts another one unseen, until a list has none that is
# new. Then TERM, two seconds later KILL. Two lists in a row must be empty. Processes that cannot be
# signalled are left, and so are processes that the kernel holds for more than ten seconds.
told=' '
rounds=0
empty=0
while [ "$empty" -lt 2 ] && [ "$rounds" -lt 120 ]; do
    signal=TERM
    [ "$rounds" -lt 20 ] || signal=KILL
    frozen=' '
    tries=0
    more=yes
    while [ -n "$more" ] && [ "$tries" -lt 10 ]; do
        more=
        pids=$(members)
        for pid in $pids; do
            case $known in *" $pid "*) ;; *) known="$known$pid " ;; esac
            case $frozen$told in
                *" $pid "* | *" $pid:$signal "*) ;;
                *) kill -s STOP "$pid" && frozen="$frozen$pid " && more=yes ;;
            esac
        done
        tries=$((tries + 1))
    done
    found=
    for pid in $pids; do
        case $told in
            *" $pid:$signal "*) found=yes ;;
            *) kill -s "$signal" "$pid" && found=yes && told="$told$pid:$signal " ;;
        esac
    done
    for pid in $frozen; do
        kill -s CONT "$pid"
    done
    if [ -n "$found" ]; then
        empty=0
        sleep 0.1 || sleep 1
    else
        empty=$((empty + 1))
    fi
    rounds=$((rounds + 1))
done
