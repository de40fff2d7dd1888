FROM labkit-standin/base:13
RUN echo 'debconf debconf/frontend select Noninteractive' | debconf-set-selections && \
    mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf && \
    apt-get install -qq postgresql-17 && ln -s /usr/lib/postgresql/* /usr/lib/postgresql/current && \
    mkdir -p /var/lib/postgresql/data && chown postgres: /var/lib/postgresql/data
ENV PATH=/usr/lib/postgresql/current/bin:$PATH PGDATA=/var/lib/postgresql/data
COPY postgres.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql/data
USER postgres
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
