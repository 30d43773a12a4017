"""Serving the page: on this machine only, with no network, to requests that name this machine."""

from __future__ import annotations

import html
import ipaddress
import logging
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dash import Dash
from flask import Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, make_server
from werkzeug.wrappers import Request
from werkzeug.wrappers import Response as PlainResponse

from gpuscope.app import callbacks, data, layout
from gpuscope.app.state import Session
from gpuscope.errors import UsageError
from gpuscope.figures.timeline import SCRIPTS, plain
from gpuscope.model.trace import shown_title
from gpuscope.progress import Progress

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY = frozenset({"0.0.0.0", "::"})
"""Every address of this machine, under none of which a browser asks."""

PATIENCE_S = 1.0
"""Loading that takes longer is shown in the browser."""

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


_LOADING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<link rel="icon" href="data:,">
<title>gpuscope</title><style>
:root { color-scheme: light dark; }
body { font: 15px system-ui, "DejaVu Sans", sans-serif; display: grid; place-content: center;
  min-height: 90vh; text-align: center; }
b { font-size: 22px; color: #2f7fd6; }
progress { width: 320px; margin: 14px auto; accent-color: #2f7fd6; }
</style></head>
<body><b>gpuscope</b><progress aria-label="Loading"></progress><p role="status">%s …</p></body>
</html>
"""

_NO_MARKUP = str.maketrans("<>&", "‹›+")
"""The title goes into the page as it is: it must hold no markup."""


def make_app(session: Session, host: str = "127.0.0.1") -> Dash:
    """Build the application that shows `session`.

    It refuses requests for other hosts, and tells the browser to load and run nothing but the
    page's own files: no scripts from elsewhere or inside the page, no eval, no frame around it.
    """
    name = plain(shown_title(session.traces), 60).translate(_NO_MARKUP)
    app = Dash(
        "gpuscope",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title=f"{name} · gpuscope",
        update_title="",
        index_string=_HEAD,
        compress=False,
        external_scripts=[f"/shared/{name}" for name in SCRIPTS],
        external_stylesheets=["/shared/palette.css", "/shared/style.css"],
    )
    app.layout = layout.page(session)
    callbacks.register(app, session)
    data.register(app.server, session)

    def refuse() -> Response | None:
        if not is_ours(request.host, host):
            return Response(_foreign(host), 403, mimetype="text/plain")
        if request.method == "POST" and not _is_callback(app, request.get_json(silent=True)):
            return Response("This is no request of the page.\n", 400, mimetype="text/plain")
        return None

    def fail(error: Exception) -> Response | HTTPException:
        """Answer without a traceback in the terminal: a sentence there says what went wrong."""
        if isinstance(error, HTTPException):
            return error
        kind = type(error).__name__
        logging.getLogger("gpuscope").error("a request of the page failed: %s: %s", kind, error)
        return Response("gpuscope could not answer this request.\n", 500, mimetype="text/plain")

    policy = (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        f"script-src 'self' {' '.join(app.csp_hashes())}; worker-src blob:; "
        "object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )

    def forbid_all_else(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    app.server.before_request(refuse)
    app.server.register_error_handler(Exception, fail)
    app.server.after_request(forbid_all_else)
    return app


def is_ours(name: str, host: str) -> bool:
    """Return whether a Host header names this machine, or the host that was chosen.

    A page elsewhere could reach us through a name of its own, but through no address: where every
    address was chosen, any is ours, and so is the name that this machine has.
    """
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.rpartition(":")[0]
    if name in LOOPBACK or name == host:
        return True
    return host in _EVERY and (_is_address(name) or name.lower() == socket.gethostname().lower())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _foreign(host: str) -> str:
    named = socket.gethostname() if host in _EVERY else host
    return f"This page answers as localhost or {named} only: --host NAME gives it another name.\n"


def _is_callback(app: Dash, body: Any) -> bool:
    """Return whether the body of a request asks for a callback of the page, in Dash's form."""
    if not isinstance(body, dict) or body.get("output") not in app.callback_map:
        return False
    listed = [body.get("inputs"), body.get("state", []), body.get("changedPropIds", [])]
    if not all(isinstance(part, list) for part in listed):
        return False
    return len(body["inputs"]) == len(app.callback_map[body["output"]]["inputs"]) and all(
        isinstance(each, dict) and {"id", "property"} <= each.keys() for each in body["inputs"]
    )


class Front:
    """What the server talks to: a page that tells how loading goes, then the application."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.stage = "Starting"
        self.app: WSGIApplication | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if self.app is not None:
            return self.app(environ, start_response)
        asked = Request(environ)
        if not is_ours(asked.host, self.host):
            answer = PlainResponse(_foreign(self.host), 403)
        elif asked.path == "/":
            answer = PlainResponse(_LOADING % html.escape(self.stage), mimetype="text/html")
        else:
            answer = PlainResponse("gpuscope is still loading.\n", 503)
        return answer(environ, start_response)


def bind(app: WSGIApplication, host: str, port: int) -> BaseWSGIServer:
    """Bind the server; port 0 takes a free one.

    Raises
    ------
    UsageError
        The port is taken, or the host is no address of this machine.
    """
    if not host:
        msg = "--host needs an address, such as 127.0.0.1: an empty one would mean all of them."
        raise UsageError(msg)
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
    return make_server(host, port, app, threaded=True)


def serve(
    load: Callable[[Progress], Session],
    *,
    what: str,
    host: str,
    port: int,
    browser: bool,
    say: Callable[[str], None],
) -> None:
    """Load what is to be shown, and serve its page until Ctrl-C.

    Parameters
    ----------
    load
        Gives the session; told how to say how far it is.
    what
        What is served, for the user.
    browser
        Open the page in the browser.
    say
        Takes the sentences for the user.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # requests are no news to the user
    front = Front(host)
    server = bind(front, host, port)
    named = socket.gethostname() if host in _EVERY else host
    shown = f"[{named}]" if ":" in named else named
    address = f"http://{shown}:{server.server_port}/"

    announced = threading.Lock()  # taken by the first to announce

    def announce() -> None:
        if not announced.acquire(blocking=False):
            return
        if host not in LOOPBACK:
            say(
                f"warning: {host} can be reached from other machines, and the page asks nobody "
                "who they are"
            )
        say(f"Serving {what} at {address} (Ctrl-C to stop)")
        if browser:
            threading.Thread(target=_open_browser, args=(address, say), daemon=True).start()

    def tell(what: str, done: int, total: int) -> None:
        front.stage = f"{what[:1].upper()}{what[1:]}: {100 * done / max(1, total):.0f} %"

    answering = threading.Thread(target=server.serve_forever, daemon=True)
    answering.start()
    late = threading.Timer(PATIENCE_S, announce)
    late.daemon = True
    late.start()
    try:
        front.app = make_app(load(tell), host).server
        late.cancel()
        announce()
        answering.join()
    except KeyboardInterrupt:
        if front.app is None:
            raise
        say("Stopped.")
    finally:
        late.cancel()
        server.shutdown()
        server.server_close()


def _open_browser(address: str, say: Callable[[str], None]) -> None:
    """Open the page; on a machine that is reached by ssh say how to see it, for there it is not.

    A browser in the terminal, which Python would take then, does not show it.
    """
    away = "SSH_CONNECTION" in os.environ and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ)
    try:
        opened = not away and webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    here = urlsplit(address)
    if away and here.hostname in LOOPBACK:
        port = here.port
        say(
            f"To see it where you are: ssh -L {port}:localhost:{port} {socket.gethostname()}, then "
            f"open http://localhost:{port}/ there."
        )
    elif not opened:
        say(f"No browser could be opened: open {address} in one.")
