#!/bin/sh
# Stands in for an agent of the Agent Client Protocol: answers every prompt with "pong".
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case $line in
        *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
        *'"method":"session/new"'*) result='{"sessionId":"session-1"}' ;;
        *'"method":"session/prompt"'*)
            update='{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"pong"}}'
            printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"session-1","update":%s}}\n' "$update"
            result='{"stopReason":"end_turn"}'
            ;;
        *)
            printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}\n' "$id"
            continue
            ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
