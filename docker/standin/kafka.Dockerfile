# The broker is what the Kafka project publishes for Maven: no Debian package has it.
FROM labkit-standin/base:13
RUN apt-get install -qq default-jre-headless && useradd --system --uid 1000 appuser
COPY kafka-[0-9]* /opt/kafka/libs/
COPY *.sh /opt/kafka/bin/
USER appuser
WORKDIR /opt/kafka
