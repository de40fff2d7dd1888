"""nginx: a web server, and a limiter in front of one."""

import grp
import os
import pwd
import socket

import httpx

from .base import Launch, Server, need

_CONFIG = """\
daemon off;
{user}pid nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path temp-body;
    proxy_temp_path temp-proxy;
    fastcgi_temp_path temp-fastcgi;
    uwsgi_temp_path temp-uwsgi;
    scgi_temp_path temp-scgi;
    {http}
    server {{
        listen {host}:{port};
        root html;
        # Answered before any limit is looked at: to ask it takes nothing from an experiment.
        location = {ready} {{ return 204; }}
        {server}
    }}
}}
"""
_READY = "/labkit-is-it-ready"


class Nginx(Server):
    kind = "nginx"
    program = command = "nginx"
    ports = {"main": 8080}
    image, image_variable = "nginx:1.26.3", "NGINX_IMAGE"
    memory_mb = 64
    tree = True  # a master and a worker

    def launch(self, place, node):
        user = ""
        # The worker leaves root; who it is to be instead is a matter of the package.
        if os.geteuid() == 0 and not place.contained:
            nobody = pwd.getpwnam("nobody")
            user = f"user nobody {grp.getgrgid(nobody.pw_gid).gr_name};\n"
        http, server = node.options["http"], node.options["config"]
        config = _CONFIG.format(user=user, http=http, host=node.host, port=node.port, ready=_READY, server=server)
        files = {f"html/{path}": text for path, text in node.options["files"].items()}
        argv = [place.program, "-p", f"{place.folder}/", "-c", "nginx.conf"]
        if place.contained or [int(number) for number in need("nginx").version.split(".")] >= [1, 19, 5]:
            argv += ["-e", "stderr"]  # else it opens the log of the system's nginx, before it reads where its own is
        return Launch(argv, files={**files, "nginx.conf": config})

    def ready(self, node):
        try:
            with socket.create_connection((node.host, node.port), 0.5) as sock:
                sock.sendall(f"GET {_READY} HTTP/1.0\r\n\r\n".encode())
                return sock.recv(64).startswith(b"HTTP/1.1 204")
        except OSError:
            return False

    def client(self, host, port, *, name, timeout_s, **options):
        """An httpx.Client whose addresses begin at the server: `client.get("/")`. It follows no proxy settings."""
        return httpx.Client(base_url=f"http://{host}:{port}", timeout=timeout_s, trust_env=False, **options)
