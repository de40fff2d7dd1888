"""RabbitMQ: one broker."""

import contextlib
import logging
import socket
import time

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, StreamLostError

from ..observe import Lane
from .base import Launch, Server

# The user that every broker begins with may log in from another address too: only this machine reaches a lab's.
_CONFIG = {"log.console": "true", "log.file": "false", "loopback_users": "none"}

logging.getLogger("pika").setLevel(logging.CRITICAL)  # each lost connection is an exception already


class RabbitMQ(Server):
    kind = "rabbitmq"
    program = command = "rabbitmq-server"
    ports = {"amqp": 5672, "erlang": 25672, "names": 4369}
    image, image_variable = "rabbitmq:4.0.5-management", "RABBITMQ_IMAGE"
    memory_mb = 512
    tree = True  # its virtual machine and two helpers
    start_s = 60.0

    def launch(self, place, node):
        folder = place.folder
        config = {**_CONFIG, **node.options["config"]}
        files = {
            "rabbitmq.conf": "".join(f"{name} = {value}\n" for name, value in config.items()),
            "enabled_plugins": "[].\n",
        }
        places = {
            "BASE": folder,
            "MNESIA_BASE": f"{folder}/data",
            "LOG_BASE": f"{folder}/log",
            "GENERATED_CONFIG_DIR": f"{folder}/config",
            "CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",  # there is none: never the system's
            "CONF_ENV_FILE": f"{folder}/rabbitmq-env.conf",
            "ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "NODENAME": f"{node.name}@localhost",
            "NODE_IP_ADDRESS": node.host,
            "NODE_PORT": str(node.port),
            "DIST_PORT": str(node.ports["erlang"]),
            "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        env = {
            **{f"RABBITMQ_{name}": value for name, value in places.items()},
            "HOME": folder,  # for the secret that Erlang keeps there
            "RUNNING_UNDER_SYSTEMD": "true",  # so that no shell stands between the keeper and the broker
            # Erlang starts a name server that outlives it: on a port of its own it is this lab's, and ends with it.
            "ERL_EPMD_PORT": str(node.ports["names"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        return Launch([place.program], env=env, files=files)

    def ready(self, node):
        """The first word of AMQP, and the broker's answer to it: it listens only when all the rest is up."""
        try:
            with socket.create_connection((node.host, node.port), 0.5) as sock:
                sock.sendall(b"AMQP\x00\x00\x09\x01")
                return sock.recv(7)[:3] == b"\x01\x00\x00"  # a method, on channel 0: connection.start
        except OSError:
            return False

    def client(self, host, port, *, name, timeout_s, **options):
        """A pika.BlockingConnection.

        An answer that does not come within `timeout_s` raises StreamLostError and ends the connection: whether the
        request was carried out is unknown. Messages are waited for as long as the caller says.
        heartbeat -- in seconds, pika's own option: how the broker finds out that a client is frozen (default 60).
        """
        how = {"client_properties": {"connection_name": name}, **options}
        connection = _Impatient(
            pika.ConnectionParameters(
                host,
                port,
                connection_attempts=1,
                socket_timeout=timeout_s,
                stack_timeout=timeout_s,
                blocked_connection_timeout=timeout_s,
                **how,
            )  # fmt: skip
        )
        connection.answer_s = timeout_s
        return connection

    def observe(self, w, node, key):
        """How many messages wait in a queue, without those that a consumer has and did not confirm yet.

        It is asked each 10 ms, and a mark tells each number that differs from the one before.
        """
        lane, last = Lane(w, node, key), {}
        while not w.stopping:
            with (
                contextlib.suppress(AMQPConnectionError),
                contextlib.closing(self.client(node.host, node.port, name="observer", timeout_s=0.5)) as connection,
            ):
                channel = connection.channel()
                while not w.stopping:
                    try:
                        found = channel.queue_declare(key, passive=True).method
                    except ChannelClosedByBroker:
                        now, channel = None, connection.channel()
                    else:
                        now = {"length": found.message_count, "consumers": found.consumer_count}
                    if now != last:
                        lane.mark(str(now["length"]) if now else "no such queue", **(now or {}))
                        last = now
                    lane.watching()
                    time.sleep(0.01)
            lane.silent()


class _Impatient(pika.BlockingConnection):
    """pika itself waits for an answer as long as the connection stands, also for one that a cut link swallowed."""

    answer_s = 2.0
    _for_messages = False

    def process_data_events(self, time_limit=0):
        self._for_messages = True
        super().process_data_events(time_limit)

    def _flush_output(self, *waiters):
        for_messages, self._for_messages = self._for_messages, False
        if for_messages:
            return super()._flush_output(*waiters)
        timer = self._impl._adapter_call_later(self.answer_s, self._give_up)
        try:
            return super()._flush_output(*waiters)
        finally:
            self._impl._adapter_remove_timeout(timer)

    def _give_up(self):
        self._impl._terminate_stream(StreamLostError(f"no answer within {self.answer_s:g} s"))
