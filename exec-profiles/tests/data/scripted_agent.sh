#!/bin/sh
# A scripted agent for the tests. It accepts the options of all agents, prints events in the format
# of the agent that $0 names, and stores its sessions in $AGENT_HOME/<id>.
#
# Words in the prompt control it:
#   [[TOOL]]   starts tools in sessions of their own (setsid), as agents do, and waits for them
#   [[NOISE]]  prints lines that are not events
#   [[FORGET]] answers a follow-up in a new session
# AGENT_SILENT=1: prints no events; only the session file contains the id.
set -eu
name=$(basename "$0")
printf '%s\n' "$@" > "$AGENT_HOME/argv"
env > "$AGENT_HOME/env"

id= resumed= prompt= text_next=
for arg in "$@"; do
    case $text_next in
        id) id=$arg resumed=1 text_next= ; continue ;;
    esac
    case $arg in
        --session-id=*) id=${arg#*=} ;;
        --resume=* | --session=*) id=${arg#*=} resumed=1 ;;
        resume) text_next=id ;;
        --prompt=*) prompt=${arg#*=} ;;
    esac
done
# Empty if the prompt is an argument.
stdin=$(cat)
prompt=$prompt$stdin

new_id() { cat /proc/sys/kernel/random/uuid; }
if [ -z "$id" ]; then
    case $name in
        opencode) id=ses_$(new_id | tr -d -) ;;
        *) id=$(new_id) ;;
    esac
fi
before=
if [ -n "$resumed" ]; then
    [ -f "$AGENT_HOME/$id" ] || { echo "No conversation found: $id" >&2; exit 1; }
    before=$(cat "$AGENT_HOME/$id")
    case $prompt in *FORGET*) id=$(new_id) before= ;; esac
fi
printf '%s|' "$prompt" >> "$AGENT_HOME/$id"
if [ "$name" = gemini ]; then
    chats=$HOME/.gemini/tmp/project/chats
    mkdir -p "$chats"
    printf '{"projects":{"%s":"project"}}' "$PWD" > "$HOME/.gemini/projects.json"
    printf '{"sessionId":"%s","kind":"main"}\n' "$id" > "$chats/session-$id.jsonl"
fi
[ -z "${AGENT_SILENT-}" ] || exit 0

say() { printf '%s\n' "$1"; }
text="before: $before now: $prompt"
case $prompt in *NOISE*) say 'a plain line'; say '{"type":"from_the_future"}'; say '{broken' ;; esac
case $name in
    claude | cursor-agent | qwen) say "{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"$id\"}" ;;
    codex) say "{\"type\":\"thread.started\",\"thread_id\":\"$id\"}" ;;
    gemini) say "{\"type\":\"init\",\"session_id\":\"$id\"}" ;;
    opencode) say "{\"type\":\"step_start\",\"sessionID\":\"$id\"}" ;;
esac
case $prompt in
    *TOOL*)
        # Without the environment tag: a stop finds this tool only by its parent.
        setsid env -i sleep 1000 &
        pids="$$ $!"
        setsid sleep 1000 &
        echo "$pids $!" > "$AGENT_HOME/running.new"
        mv "$AGENT_HOME/running.new" "$AGENT_HOME/running"
        wait
        ;;
esac
case $name in
    claude | cursor-agent | qwen)
        say "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"$text\"}]}}"
        say "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$text\"}"
        ;;
    codex)
        say "{\"type\":\"item.completed\",\"item\":{\"id\":\"i\",\"type\":\"agent_message\",\"text\":\"$text\"}}"
        say '{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":2}}'
        ;;
    gemini)
        say "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"$text\",\"delta\":true}"
        say '{"type":"result","status":"success","stats":{}}'
        ;;
    opencode)
        say "{\"type\":\"text\",\"sessionID\":\"$id\",\"part\":{\"text\":\"$text\"}}"
        say "{\"type\":\"step_finish\",\"sessionID\":\"$id\",\"part\":{\"reason\":\"stop\"}}"
        ;;
esac
