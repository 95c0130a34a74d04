#!/bin/sh
# hook FOLDER EVENT [PROGRAM ARG...] [PAYLOAD]
# Stores one payload as FOLDER/EVENT.<pid>.<n>.json: written under a dot name, then renamed, so a reader never
# sees a part of it. Payload: standard input; for EVENT "notify" the last argument, and PROGRAM (the user's own
# notify program) then runs with its arguments and the payload. At most 8 MiB are kept; the rest is drained.
umask 077
folder=$1 event=$2
shift 2
n=0
while t=$folder/.$event.$$.$n f=$folder/$event.$$.$n.json; [ -e "$f" ] || ! (set -C; : >"$t") 2>/dev/null; do
    n=$((n + 1))
    [ "$n" -lt 1000 ] || exit 0
done
if [ "$event" = notify ]; then
    for payload; do :; done
    printf '%s' "$payload" >"$t"
else
    head -c 8388608 >"$t"
    cat >/dev/null
fi
mv -f "$t" "$f"
if [ "$event" = notify ] && [ $# -gt 1 ]; then exec "$@"; fi
exit 0
