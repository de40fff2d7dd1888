#!/bin/sh
# zkServer.sh start-foreground [CONFIGURATION]
set -eu
[ "${1-}" = start-foreground ] || { echo "usage: $0 start-foreground [configuration]" >&2; exit 1; }
jar=$(ls /usr/share/java/zookeeper-[0-9]*.jar | head -n 1)
# Both may be several words.
# shellcheck disable=SC2086
exec java -Xmx"${ZK_SERVER_HEAP:-1000}m" ${JVMFLAGS-} ${SERVER_JVMFLAGS-} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -cp "$jar:/usr/share/java/slf4j-simple.jar" org.apache.zookeeper.server.quorum.QuorumPeerMain "${2:-/conf/zoo.cfg}"
