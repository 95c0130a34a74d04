# Ends the executions of a host that has ended. The host holds the other end of standard input, and
# nothing else does: the end of input is the end of the host, also by SIGKILL.
#
# Arguments: the name of the tag variable, then the live executions, each as <id>:<mark>.
# Input: lines `+ <id>:<mark>` and `- <id>:<mark>`.
trap '' HUP INT QUIT TERM
# The tools may be elsewhere (NixOS), or the host may have no search path. A watcher without its
# tools ends at once, which the host reports: later, nothing would be left to report it.
PATH=${PATH:+$PATH:}/usr/bin:/bin
for tool in grep sleep; do
    command -v "$tool" >/dev/null || exit 127
done
tag=$1
shift
live=" $* "
while read -r change token; do
    case $change in
        +) case $live in *" $token "*) ;; *) live="$live$token " ;; esac ;;
        -) case $live in *" $token "*) live="${live%%" $token "*} ${live#*" $token "}" ;; esac ;;
    esac
done

set --
for token in $live; do
    set -- "$@" -e "$tag=${token%:*}" -e "${token#*:}"
done
[ $# -gt 0 ] || exit 0

# A zombie is alive as long as one of its threads is.
alive() {
    read -r stat <"/proc/$1/stat" || return 1
    set -- ${stat##*) }
    case $1 in
        Z) [ "${18}" -gt 1 ] ;;
        X | x) return 1 ;;
    esac
}

# TERM, two seconds later KILL. Two scans in a row must find nothing: a process may fork and end
# between the listing and the read. Processes that cannot be signalled are left, and so are
# processes that the kernel holds for more than ten seconds.
told=' '
rounds=0
empty=0
while [ "$empty" -lt 2 ] && [ "$rounds" -lt 120 ]; do
    signal=TERM
    [ "$rounds" -lt 20 ] || signal=KILL
    found=
    for file in $(grep -lsF "$@" /proc/[0-9]*/environ /proc/[0-9]*/limits); do
        pid=${file#/proc/}
        pid=${pid%/*}
        alive "$pid" || continue
        case $told in
            *" $pid:$signal "*) found=yes ;;
            *) kill -s "$signal" "$pid" && found=yes && told="$told$pid:$signal " ;;
        esac
    done
    if [ -n "$found" ]; then
        empty=0
        sleep 0.1 || sleep 1
    else
        empty=$((empty + 1))
    fi
    rounds=$((rounds + 1))
done
