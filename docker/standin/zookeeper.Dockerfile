# Debian's own zkServer.sh insists on Debian's configuration folder: this one does what the official image's does.
FROM labkit-standin/base:13
RUN apt-get install -qq libzookeeper-java default-jre-headless && \
    useradd --system zookeeper && mkdir /data && chown zookeeper: /data
COPY zookeeper.sh /usr/local/bin/zkServer.sh
VOLUME /data
WORKDIR /data
USER zookeeper
CMD ["zkServer.sh", "start-foreground"]
