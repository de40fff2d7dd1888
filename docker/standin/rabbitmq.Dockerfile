FROM labkit-standin/base:13
RUN apt-get install -qq rabbitmq-server && rabbitmq-plugins enable --offline rabbitmq_management && \
    rm -f /var/lib/rabbitmq/.erlang.cookie && \
    printf 'loopback_users.guest = false\nlog.console = true\n' > /etc/rabbitmq/rabbitmq.conf && \
    ln -s /usr/lib/rabbitmq/lib/rabbitmq_server-* /opt/rabbitmq
ENV PATH=/opt/rabbitmq/sbin:$PATH
VOLUME /var/lib/rabbitmq
USER rabbitmq
CMD ["rabbitmq-server"]
