"""Serving the page: on this machine only, with no network, to requests that name this machine."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

from dash import Dash
from flask import Response, request
from werkzeug.serving import BaseWSGIServer, make_server

from gpuscope.app import callbacks, layout
from gpuscope.app.state import Session
from gpuscope.errors import UsageError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_HEAD = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/icon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>
      {%config%}
      {%scripts%}
      {%renderer%}
    </footer>
  </body>
</html>
"""


_NO_MARKUP = str.maketrans("<>&", "‹›+")
"""The title goes into the page as it is: it must hold no markup."""


def make_app(session: Session, host: str = "127.0.0.1") -> Dash:
    """Build the application that shows `session`.

    It refuses requests for other hosts, and tells the browser to load and run nothing but the
    page's own files: no scripts from elsewhere or inside the page, no eval, no frame around it.
    """
    name = layout.plain(Path(session.trace.path).name, 60).translate(_NO_MARKUP)
    app = Dash(
        "gpuscope",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title=f"{name} · gpuscope",
        update_title="",
        index_string=_HEAD,
        compress=False,
    )
    app.layout = layout.page(session)
    callbacks.register(app, session)

    def refuse_foreign_hosts() -> Response | None:
        """Refuse requests by another name: a page elsewhere could reach us through its own name."""
        name = _host_name(request.host)
        if name in LOOPBACK or name == host:
            return None
        text = (
            f"This page answers as localhost or {host} only: --host NAME gives it another name.\n"
        )
        return Response(text, 403, mimetype="text/plain")

    policy = (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        f"script-src 'self' {' '.join(app.csp_hashes())}; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )

    def forbid_all_else(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    app.server.before_request(refuse_foreign_hosts)
    app.server.after_request(forbid_all_else)
    return app


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def bind(app: Dash, host: str, port: int) -> BaseWSGIServer:
    """Bind the server; port 0 takes a free one.

    Raises
    ------
    UsageError
        The port is taken, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = f"port {port}" if port else "a free port"
            msg = (
                f"{what} on {host} cannot be used ({error.strerror}): leave --port out to take "
                "a free one."
            )
            raise UsageError(msg) from None
        except OverflowError:
            msg = f"there is no port {port}: take one from 1 to 65535."
            raise UsageError(msg) from None
    return make_server(host, port, app.server, threaded=True)


def serve(
    session: Session, *, host: str, port: int, browser: bool, say: Callable[[str], None]
) -> None:
    """Serve the page until Ctrl-C.

    Parameters
    ----------
    browser
        Open the page in the browser.
    say
        Takes the sentences for the user.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # requests are no news to the user
    app = make_app(session, host)
    server = bind(app, host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.server_port}/"
    if host not in LOOPBACK:
        say(
            f"warning: {host} can be reached from other machines, and the page asks nobody who "
            "they are"
        )
    say(f"Serving {session.trace.path} at {address} (Ctrl-C to stop)")
    if browser:
        threading.Thread(target=_open_browser, args=(address, say), daemon=True).start()
    server.serve_forever()  # until Ctrl-C, which it takes for the end
    say("Stopped.")


def _open_browser(address: str, say: Callable[[str], None]) -> None:
    try:
        opened = webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        say(f"No browser could be opened: open {address} in one.")
