#!/bin/sh
# Both may be several words.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS--Xmx1G -Xms1G} ${KAFKA_JVM_PERFORMANCE_OPTS-} ${KAFKA_OPTS-} \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*' kafka.Kafka "$@"
