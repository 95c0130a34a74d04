#!/bin/sh
# Stands in for an agent: repeats the message and prints its marker.
while printf '> ' && read -r line; do
    printf 'heard %s\n%s\n' "$line" "$1"
done
