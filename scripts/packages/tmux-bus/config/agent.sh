#!/bin/sh
# Stands in for an agent: repeats what it is told, and ends with its marker.
while printf '> ' && read -r line; do
    printf 'heard %s\n%s\n' "$line" "$1"
done
