"""A scripted Bot API server: real HTTP on 127.0.0.1, answers shaped as the Bot API documents them, faults on demand.

What a person sends is said with `BotApi.receive`; what the bot sends is found in `BotApi.calls`, as it arrived.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Condition, Event, Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "4242:canary-token-AAHdqTcvCH1vGWJxfSeofSAs0K5PA"  # no bot of anybody's
BOT = {"id": 4242, "is_bot": True, "first_name": "Holdfast", "username": "holdfast_bot"}
DOWNLOAD_LIMIT_BYTES = 20 * 2**20
FILE = "file"


@dataclass
class Fault:
    """What happens to the next `times` calls of a method (FILE: of a download); below zero, to all of them.

    `status` refuses; `is_held` never answers, until `release`; `is_answer_lost` does what was asked and hangs up;
    `is_cut` sends half of the answer; `page` is what a gateway answers in its place. `slow_seconds` is the pause
    between eight pieces of the answer.
    """

    method: str
    times: int = -1
    status: int = 0
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    is_held: bool = False
    is_answer_lost: bool = False
    is_cut: bool = False
    slow_seconds: float = 0.0
    page: str = ""


@dataclass(frozen=True)
class Part:
    """A file that came along with a call."""

    name: str
    content_type: str
    content: bytes


@dataclass(frozen=True)
class Call:
    """One call as it arrived; values that came as JSON are decoded."""

    method: str
    params: dict[str, Any]
    files: dict[str, Part]


class Refusal(Exception):
    """An answer that is not ok."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status, self.description, self.parameters = status, description, parameters


class BotApi(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1 (`url` is for TELEGRAM_API_URL); use it in a with-block."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, token: str = TOKEN) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.tokens = {token}
        self.calls: list[Call] = []
        self.webhook: dict[str, Any] = {"url": ""}
        self.files: dict[str, tuple[str, bytes, int]] = {}
        self.lock = Lock()
        self.released = Event()
        self._faults: list[Fault] = []
        self._updates: list[dict[str, Any]] = []
        self._changed = Condition()
        self._poller = 0
        self._ids = count(1001)
        self._update_ids = count(500_001)

    # --- what a test says -----------------------------------------------------------------------------

    def receive(self, *, kind: str = "message", **message: Any) -> dict[str, Any]:
        """A person sends a message with these fields; returns the update, which also waits for a poller."""
        chat = message.pop("chat", {"id": 77, "type": "private", "first_name": "Ann"})
        sender = message.pop("sender", {"id": 77, "is_bot": False, "first_name": "Ann", "language_code": "en"})
        told = {"message_id": next(self._ids), "date": int(time.time()), "chat": chat, "from": sender, **message}
        update = {"update_id": next(self._update_ids), kind: told}
        self.queue(update)
        return update

    def queue(self, update: dict[str, Any]) -> None:
        """Let this update wait for a poller."""
        with self._changed:
            self._updates.append(update)
            self._changed.notify_all()

    @property
    def waiting(self) -> list[int]:
        """The ids of the updates that no poller has confirmed yet."""
        with self._changed:
            return [update["update_id"] for update in self._updates]

    def keep_file(self, content: bytes, *, size: int | None = None, suffix: str = "ogg") -> str:
        """A file that can be fetched; returns its file_id. `size` is what the server takes its size for."""
        with self.lock:
            number = next(self._ids)
            file_id = f"AgACAgIAAxkBAAI{number}"
            self.files[file_id] = (f"documents/file_{number}.{suffix}", content, len(content) if size is None else size)
        return file_id

    def expire_links(self) -> None:
        """An hour passes: files have to be asked for again."""
        with self.lock:
            for file_id, (path, content, size) in self.files.items():
                self.files[file_id] = (path.replace("/file_", "/file_again_"), content, size)

    def fail(self, method: str, **how: Any) -> None:
        with self.lock:
            self._faults.append(Fault(method, **how))

    def recover(self) -> None:
        with self.lock:
            self._faults.clear()
        self.released.set()
        self.released = Event()

    def sent(self, *methods: str) -> list[Call]:
        """The calls of these methods (none named: of all that send something), in order."""
        with self.lock:
            return [call for call in self.calls if call.method in (methods or SENDING)]

    # --- what the handler asks ------------------------------------------------------------------------

    def next_fault(self, method: str) -> Fault | None:
        with self.lock:
            for fault in self._faults:
                if fault.method == method and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def answer(self, call: Call) -> Any:
        """The result of a call; raises Refusal."""
        if call.method in SENDING:
            return self._send(call)
        if call.method in ("setWebhook", "deleteWebhook"):
            self.webhook = {"url": "", **call.params}
            return True
        match call.method:
            case "getMe":
                return {**BOT, "can_join_groups": True, "can_read_all_group_messages": False}
            case "getUpdates":
                return self._poll(call.params)
            case "getWebhookInfo":
                return {"url": self.webhook["url"], "has_custom_certificate": False, "pending_update_count": 0}
            case "getFile":
                return self._file(str(call.params.get("file_id")))
        raise Refusal(404, "Not Found: method not found")

    def content_of(self, path: str) -> bytes | None:
        with self.lock:
            return next((content for known, content, _ in self.files.values() if known == path), None)

    def _file(self, file_id: str) -> dict[str, Any]:
        with self.lock:
            found = self.files.get(file_id)
        if found is None:
            raise Refusal(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        path, _, size = found
        if size > DOWNLOAD_LIMIT_BYTES:
            raise Refusal(400, "Bad Request: file is too big")
        return {"file_id": file_id, "file_unique_id": file_id[-8:], "file_size": size, "file_path": path}

    def _poll(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Wait for updates; a second poller ends the first one's wait with a conflict, as the real server does."""
        if self.webhook["url"]:
            raise Refusal(409, "Conflict: can't use getUpdates method while webhook is active")
        deadline = time.monotonic() + float(params.get("timeout") or 0)
        with self._changed:
            self._poller += 1
            mine = self._poller
            self._changed.notify_all()
            self._updates = [update for update in self._updates if update["update_id"] >= int(params.get("offset", 0))]
            while not self._updates and self._poller == mine and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            if self._poller != mine:
                raise Refusal(409, "Conflict: terminated by other getUpdates request")
            allowed = params.get("allowed_updates") or []
            wanted = [update for update in self._updates if not allowed or set(allowed).intersection(update)]
            return wanted[: int(params.get("limit", 100))]

    def _send(self, call: Call) -> dict[str, Any]:
        params = call.params
        text, caption = str(params.get("text", "")), str(params.get("caption", ""))
        if call.method == "sendMessage" and not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > 4096:
            raise Refusal(400, "Bad Request: message is too long")
        if len(caption.encode("utf-16-le")) // 2 > 1024:
            raise Refusal(400, "Bad Request: message caption is too long")
        if any(not part.content for part in call.files.values()):
            raise Refusal(400, "Bad Request: file must be non-empty")
        chat = {"id": params.get("chat_id"), "type": "private", "first_name": "Ann"}
        message: dict[str, Any] = {"message_id": next(self._ids), "date": int(time.time()), "chat": chat, "from": BOT}
        if text:
            message["text"] = text
        if caption:
            message["caption"] = caption
        return message

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what the tests are about."""

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.recover()
        self.shutdown()
        self.server_close()


SENDING = ("sendMessage", "sendPhoto", "sendDocument", "sendChatAction")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BotApi

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/file/bot"):
            token, _, name = path.removeprefix("/file/bot").partition("/")
            return self._download(token, name)
        token, _, method = path.removeprefix("/bot").partition("/")
        fault = self.server.next_fault(method) or Fault(method)
        try:
            if token not in self.server.tokens:
                raise Refusal(401, "Unauthorized")
            if fault.page:
                return self._answer(fault.status or 200, "text/html", fault.page.encode(), Fault(method))
            if fault.status:
                raise Refusal(fault.status, fault.description, **fault.parameters)
            call = Call(method, *_parsed(self.headers.get("Content-Type", ""), body, urlsplit(self.path).query))
            with self.server.lock:
                self.server.calls.append(call)
            if fault.is_held:
                return self._hold()
            document: dict[str, Any] = {"ok": True, "result": self.server.answer(call)}
            status = 200
        except Refusal as refusal:
            status = refusal.status
            document = {"ok": False, "error_code": status, "description": refusal.description}
            if refusal.parameters:
                document["parameters"] = refusal.parameters
        return self._answer(status, "application/json", json.dumps(document).encode(), fault)

    def _download(self, token: str, name: str) -> None:
        fault = self.server.next_fault(FILE) or Fault(FILE)
        with self.server.lock:
            self.server.calls.append(Call(FILE, {"file_path": name}, {}))
        if fault.is_held:
            return self._hold()
        content = self.server.content_of(name) if token in self.server.tokens else None
        status = fault.status or (200 if content is not None else 404)
        answer = (content or b"") if status == 200 else json.dumps({"ok": False, "error_code": status}).encode()
        return self._answer(status, "application/octet-stream", answer, fault)

    def _answer(self, status: int, content_type: str, content: bytes, fault: Fault) -> None:
        if fault.is_answer_lost:
            return self._hang_up()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault.is_cut:
            self.wfile.write(content[: len(content) // 2])
            return self._hang_up()
        size = -(-len(content) // 8) if fault.slow_seconds else len(content)
        for at in range(0, len(content), max(size, 1)):
            self.wfile.write(content[at : at + size])
            if fault.slow_seconds:
                self.server.released.wait(fault.slow_seconds)
        return None

    def _hold(self) -> None:
        self.server.released.wait(60)
        self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None: ...


def _parsed(content_type: str, body: bytes, query: str) -> tuple[dict[str, Any], dict[str, Part]]:
    """The parameters and files of a call in any of the forms that the Bot API takes."""
    if content_type.startswith("application/json"):
        return dict(json.loads(body)), {}
    if not content_type.startswith("multipart/form-data"):
        pairs = parse_qs(body.decode() or query, keep_blank_values=True)
        return {name: _decoded(name, values[-1]) for name, values in pairs.items()}, {}
    head = b"MIME-Version: 1.0\r\nContent-Type: " + content_type.encode() + b"\r\n\r\n"
    form = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    params: dict[str, Any] = {}
    files: dict[str, Part] = {}
    for part in form.iter_parts():
        name = str(part.get_param("name", header="Content-Disposition"))
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        file_name = part.get_filename()
        if file_name is None:
            params[name] = _decoded(name, content.decode())
        else:
            files[name] = Part(file_name, part.get_content_type(), content)
    return params, files


def _decoded(name: str, value: str) -> Any:
    """Objects, lists, numbers and booleans come as JSON; what a person reads stays as it is."""
    if name in ("text", "caption"):
        return value
    if value[:1] in ("{", "[") or value in ("true", "false") or value.lstrip("-").isdigit():
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
