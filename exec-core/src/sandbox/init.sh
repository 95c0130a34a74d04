exec 4>&2 2>/dev/null
(echo >&3 && read -r go <&3 && exec "$@" 2>&4 3>&- 4>&-)
exit $?
