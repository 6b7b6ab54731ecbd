#!/bin/sh
# Java wants the name and the home of its user. A cluster may choose a user that /etc/passwd does not know (OpenShift
# gives each namespace its own), and the root file system is read-only: such a user is given an entry of its own.
set -eu
if ! id -un > /dev/null 2>&1; then
    passwd=$(mktemp)
    cat /etc/passwd > "$passwd"
    echo "kafka-delta-express-user:x:$(id -u):$(id -g)::${HOME:-/tmp}:/usr/sbin/nologin" >> "$passwd"
    export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD="$passwd" NSS_WRAPPER_GROUP=/etc/group
fi
exec "$@"
