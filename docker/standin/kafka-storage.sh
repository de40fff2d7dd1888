#!/bin/sh
exec java -Xmx256M -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp '/opt/kafka/libs/*' kafka.tools.StorageTool "$@"
