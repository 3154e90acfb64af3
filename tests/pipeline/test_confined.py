"""The confined child: what it gives back, how it ends, and what it cannot reach."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attachments.errors import BadFile, StorageUnavailable, TooManyPixels
from pipeline import confined
from pipeline.confined import NoProcess
from tests.waiting import until

PROJECT = Path(__file__).resolve().parents[2]
MEMORY_BYTES = 512 * 1024**2
LANDLOCK_VERSION = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
needs_landlock = pytest.mark.skipif(LANDLOCK_VERSION < 1, reason="no Landlock in this kernel")
needs_seccomp = pytest.mark.skipif(os.uname().machine not in {"x86_64", "aarch64"}, reason="no filter for this machine")


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    yield
    confined.shut_down()


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a function of `confined_targets` in a child whose folder is `tmp_path/scratch`."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(name: str, *, seconds: float = 30, memory_bytes: int = MEMORY_BYTES, **options: Any) -> dict[str, Any]:
        request = options.pop("request", {})
        return confined.run(
            f"tests.pipeline.confined_targets:{name}",
            request,
            scratch=scratch,
            seconds=seconds,
            memory_bytes=memory_bytes,
            **options,
        )

    return run


# --- results ----------------------------------------------------------------------------------------


def test_the_result_comes_back_as_it_was_returned(child: Any) -> None:
    assert child("echo", request={"number": 1.5, "text": "Привет", "none": None}) == {
        "number": 1.5,
        "text": "Привет",
        "none": None,
    }


def test_each_call_is_a_process_of_its_own_in_the_scratch_folder(child: Any, tmp_path: Path) -> None:
    first, second = child("where"), child("where")
    assert first["pid"] != second["pid"]
    assert first["server"] == second["server"]
    assert first["group"] == first["pid"]
    assert first["folder"] == str(tmp_path / "scratch")


def test_an_attachment_error_arrives_with_its_class_detail_and_facts(child: Any) -> None:
    with pytest.raises(BadFile, match="premature end"):
        child("bad_file")
    with pytest.raises(TooManyPixels) as raised:
        child("too_many_pixels")
    assert raised.value.facts == {"width": 5, "height": 5}


def test_any_other_error_arrives_with_its_traceback_for_the_operator(child: Any) -> None:
    with pytest.raises(confined.ChildFailed) as raised:
        child("divide_by_zero")
    assert "ZeroDivisionError" in raised.value.detail
    assert "divide_by_zero" in raised.value.detail


def test_a_full_disk_is_an_outage_and_not_the_files_fault(child: Any) -> None:
    with pytest.raises(StorageUnavailable, match="No space left"):
        child("fill_the_disk")


def test_a_machine_without_room_for_the_server_is_an_outage(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    confined.shut_down()
    # Any reason why the system starts no process will do.
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NoProcess):
        child("echo")
    monkeypatch.undo()
    assert child("echo", request={"a": 1})


# The kernel exempts root; the same test runs wherever the suite is run by anybody else.
@pytest.mark.skipif(os.geteuid() == 0, reason="the number of root's processes is not limited")
def test_a_machine_without_room_for_the_child_is_an_outage(child: Any) -> None:
    child("echo")
    server = confined._servers[os.getpid()].process.pid
    most, most_of_all = resource.prlimit(server, resource.RLIMIT_NPROC)
    resource.prlimit(server, resource.RLIMIT_NPROC, (0, most_of_all))
    with pytest.raises(NoProcess):
        child("echo")
    resource.prlimit(server, resource.RLIMIT_NPROC, (most, most_of_all))
    assert child("echo", request={"a": 1})


def test_an_unknown_target_is_an_error_and_not_a_dead_server(child: Any) -> None:
    server = child("where")["server"]
    with pytest.raises(confined.ChildFailed, match="no_such_function"):
        child("no_such_function")
    assert child("where")["server"] == server


def test_a_reply_that_is_too_large_is_refused(child: Any) -> None:
    assert len(child("answer_at_length", request={"length": 60_000})["text"]) == 60_000
    with pytest.raises(confined.ChildFailed, match="too large"):
        child("answer_at_length", request={"length": 70_000})


def test_a_request_that_is_too_large_is_refused(child: Any) -> None:
    with pytest.raises(ValueError, match="too large"):
        child("echo", request={"text": "x" * 70_000})
    assert child("echo") == {}


@pytest.mark.parametrize("name", ["answer_nonsense", "answer_list"])
def test_a_reply_that_is_not_a_json_object_is_refused(child: Any, name: str) -> None:
    with pytest.raises(confined.ChildFailed):
        child(name)


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loop", "wait_for_ever"])
def test_a_child_that_takes_too_long_is_killed(child: Any, name: str) -> None:
    with pytest.raises(confined.TimeLimit):
        child(name, seconds=0.3)


def test_a_child_that_wants_too_much_memory_ends_alone(child: Any) -> None:
    with pytest.raises(confined.MemoryLimit):
        child("exhaust_memory")
    with pytest.raises(confined.MemoryLimit):
        child("abort_without_memory")


def test_a_crash_tells_its_signal_and_where_it_happened(child: Any) -> None:
    server = child("where")["server"]
    with pytest.raises(confined.Crashed) as raised:
        child("touch_nothing")
    assert raised.value.signal == signal.SIGSEGV
    assert "touch_nothing" in raised.value.detail
    assert child("where")["server"] == server


def test_a_child_that_leaves_without_an_answer_has_crashed(child: Any) -> None:
    with pytest.raises(confined.Crashed) as raised:
        child("leave", request={"code": 7})
    assert raised.value.exit_code == 7
    with pytest.raises(confined.ChildFailed):
        child("leave", request={"code": 0})


def test_stop_ends_the_child_at_once(child: Any, tmp_path: Path) -> None:
    started = tmp_path / "scratch" / "started"
    with pytest.raises(confined.Interrupted):
        child("wait_for_ever", stop=started.exists)
    pid, _ = _pids(started)
    assert not _is_alive(pid)


def test_stop_may_be_an_event(child: Any) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(confined.Interrupted):
        child("wait_for_ever", stop=stop)


def test_a_stop_that_comes_after_the_answer_does_not_touch_the_next_child(child: Any) -> None:
    child("echo")
    confined._servers[os.getpid()].connection.send(b"stop")
    assert child("echo", request={"still": "here"}) == {"still": "here"}


def test_an_error_raised_while_waiting_ends_the_child_and_the_next_call_works(child: Any, tmp_path: Path) -> None:
    started = tmp_path / "scratch" / "started"

    def interrupt_once_started() -> bool:
        if started.exists():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        child("wait_for_ever", stop=interrupt_once_started)
    _wait_until_dead(*_pids(started))
    assert child("echo", request={"still": "here"}) == {"still": "here"}


def test_asking_every_process_of_a_service_to_end_leaves_the_end_of_the_work_to_the_worker(
    child: Any, tmp_path: Path
) -> None:
    started = tmp_path / "scratch" / "started"

    def terminate_both_once_started() -> bool:
        if started.exists():
            for pid in _pids(started):
                os.kill(pid, signal.SIGTERM)
            started.unlink()
        return False

    with pytest.raises(confined.TimeLimit):
        child("wait_for_ever", seconds=1, stop=terminate_both_once_started)


def test_when_the_server_is_killed_its_child_dies_and_the_next_call_starts_another(child: Any, tmp_path: Path) -> None:
    started = tmp_path / "scratch" / "started"

    def kill_the_server_once_started() -> bool:
        if started.exists():
            os.kill(_pids(started)[1], signal.SIGKILL)
        return False

    with pytest.raises(confined.Crashed):
        child("wait_for_ever", stop=kill_the_server_once_started)
    _wait_until_dead(*_pids(started))
    assert child("where")["server"] != _pids(started)[1]


def test_a_killed_worker_leaves_no_orphans(tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", _worker_program(tmp_path)], cwd=PROJECT)
    started = tmp_path / "started"
    until(started.exists)
    child, server = _pids(started)
    assert _is_alive(child) and _is_alive(server)
    worker.kill()
    worker.wait()
    _wait_until_dead(child, server)


def test_a_worker_that_ends_in_peace_leaves_no_orphans(tmp_path: Path) -> None:
    program = _worker_program(tmp_path).replace("wait_for_ever", "where") + "\nprint(result['server'])"
    worker = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=True, capture_output=True, text=True)
    _wait_until_dead(int(worker.stdout))


def test_a_process_forked_from_a_worker_gets_a_server_of_its_own(tmp_path: Path) -> None:
    program = _worker_program(tmp_path).replace("wait_for_ever", "where") + textwrap.dedent(
        """
        import os
        if os.fork() == 0:
            os._exit(0 if confined.run(**call)["server"] != result["server"] else 1)
        assert os.wait()[1] == 0
        assert confined.run(**call)["server"] == result["server"]
        """
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=True, timeout=60)


def test_calls_from_several_threads_take_turns(child: Any) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(child("echo", request={"n": number})["n"]))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(8))


# --- what it cannot reach ---------------------------------------------------------------------------


def test_the_limits_are_in_force(child: Any) -> None:
    found = child("limits", seconds=20)
    assert found["memory"] == [MEMORY_BYTES, MEMORY_BYTES]
    assert found["core"] == [0, 0]
    assert found["processor"] == [22, 23]


def test_no_secret_of_the_worker_is_in_the_environment(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    confined.shut_down()
    found = child("environment")
    # Python itself may add LC_CTYPE.
    assert set(found) - {"LC_CTYPE"} == {*confined.ENVIRONMENT, "TMPDIR"}


def test_no_connection_of_the_worker_is_inherited(child: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        confined.shut_down()
        found = child("open_files")
    assert found.pop("0") == "device"
    assert len(found) == 3
    assert set(found.values()) == {"file"}


@needs_seccomp
@pytest.mark.parametrize("what", ["fork", "execute", "replace"])
def test_the_child_can_start_no_process(child: Any, what: str) -> None:
    assert child("attempt", request={"what": what})["error"] == "PermissionError"


def test_the_child_can_start_threads(child: Any) -> None:
    assert child("attempt", request={"what": "thread"})["error"] is None


@needs_seccomp
def test_the_child_has_no_network(child: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = child("attempt", request={"what": "connect", "port": server.getsockname()[1]})
    assert connected["error"] == "PermissionError"
    assert child("attempt", request={"what": "listen"})["error"] == "PermissionError"


@needs_seccomp
def test_the_child_can_signal_no_other_process(child: Any) -> None:
    assert child("attempt", request={"what": "kill", "pid": os.getpid()})["error"] == "PermissionError"


def test_the_child_writes_in_its_folder(child: Any, tmp_path: Path) -> None:
    assert child("attempt", request={"what": "write", "path": "new"})["error"] is None
    assert (tmp_path / "scratch" / "new").read_bytes() == b"x"


@needs_landlock
def test_the_child_reads_only_what_it_was_given_and_changes_none_of_it(child: Any, tmp_path: Path) -> None:
    given, hidden = tmp_path / "given", tmp_path / "hidden"
    for path in (given, hidden):
        path.write_text("secret")

    def error(what: str, path: Path, **more: str) -> Any:
        return child("attempt", request={"what": what, "path": str(path), **more}, readable=[given])["error"]

    assert error("read", given) is None
    assert error("write", given) == "PermissionError"
    assert error("read", hidden) == "PermissionError"
    assert error("read", Path(f"/proc/{os.getpid()}/environ")) == "PermissionError"
    assert error("read", PROJECT / "manage.py") == "PermissionError"
    assert error("write", tmp_path / "elsewhere") == "PermissionError"
    assert error("link", tmp_path / "scratch" / "link", to=str(hidden)) is not None


# --- watching processes -----------------------------------------------------------------------------


def _worker_program(scratch: Path) -> str:
    return textwrap.dedent(
        f"""
        from pathlib import Path
        from pipeline import confined
        call = dict(
            target="tests.pipeline.confined_targets:wait_for_ever", request={{}},
            scratch=Path({str(scratch)!r}), seconds=3600, memory_bytes={MEMORY_BYTES},
        )
        result = confined.run(**call)
        """
    )


def _pids(started: Path) -> tuple[int, int]:
    child, server = started.read_text().split()
    return int(child), int(server)


def _wait_until_dead(*pids: int) -> None:
    until(lambda: not any(map(_is_alive, pids)))


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
