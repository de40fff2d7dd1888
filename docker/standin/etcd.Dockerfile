FROM labkit-standin/base:13
RUN apt-get install -qq etcd-server etcd-client && ln -s /usr/bin/etcd /usr/bin/etcdctl /usr/local/bin/
CMD ["/usr/local/bin/etcd"]
