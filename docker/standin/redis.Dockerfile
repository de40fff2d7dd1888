FROM labkit-standin/base:13
RUN apt-get install -qq redis-server redis-sentinel && rm -rf /etc/redis && mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
USER redis
CMD ["redis-server", "--protected-mode", "no"]
