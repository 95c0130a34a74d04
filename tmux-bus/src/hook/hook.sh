#!/bin/sh
# hook.sh FOLDER EVENT [PROGRAM ARG...] [PAYLOAD]
#
# Stores the payload of one event as FOLDER/EVENT.<pid>.<n>.json. It is written under a name with a dot and then
# renamed, so a reader never sees a part of it.
#
# The payload is the standard input. For the event `notify` it is the last argument, and PROGRAM, the notify program
# of the user, then runs with its own arguments and the payload.
#
# At most 8 MiB are kept; the rest is read and dropped, because a closed pipe can fail the agent. A file of exactly
# that size is a payload that was cut. The status is always 0 and nothing is printed: some agents show the output of
# a hook to the model.
mask=$(umask)
umask 077
folder=$1 event=$2
shift 2
n=0
while [ -d "$folder" ] && [ "$n" -lt 1000 ]; do
    part=$folder/.$event.$$.$n file=$folder/$event.$$.$n.json
    # `set -C`: the file is created by this process or not at all.
    if [ ! -e "$file" ] && (set -C; : >"$part") 2>/dev/null; then
        if [ "$event" = notify ]; then
            for payload; do :; done
            printf '%s' "$payload" >"$part"
        else
            head -c 8388608 >"$part"
        fi 2>/dev/null
        mv -f "$part" "$file" 2>/dev/null
        break
    fi
    n=$((n + 1))
done
if [ "$event" != notify ]; then
    cat >/dev/null 2>&1
elif [ $# -gt 1 ]; then
    umask "$mask"
    exec "$@"
fi
exit 0
