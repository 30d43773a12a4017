"""libcupti, NVIDIA's tracing library: found, loaded, and called without anything but ctypes.

Only the standard library is used, because this also runs inside the recorded program, in whatever
interpreter that has.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuscope.errors import MissingError
from gpuscope.recording.cupti import layout

VARIABLE = "GPUSCOPE_CUPTI"
"""The environment variable that names the libcupti to use."""
NSYS_INSTEAD = "or record with Nsight Systems (--nsys)"

RANGES_LOST = "CUPTI leaves out what C++ programs put into NVTX's default domain"

TOOLKITS = "/usr/local/cuda*"
"""Where CUDA toolkits are installed."""

_MAJORS = (13, 12)
"""CUDA versions whose records are known, newest first."""
_TOOLKIT_PATTERNS = ("lib64", "extras/CUPTI/lib64", "targets/*/lib", "lib")
_PACKAGE_PATTERNS = ("nvidia/cu1*/lib", "nvidia/cuda_cupti/lib")

_DRIVER_DOMAIN, _RUNTIME_DOMAIN = 1, 2
_NAMELESS = "INVALID"
_LAST_CALLBACK_ID = 2048
"""Above every callback id there is: 13.0 has fewer than 900 of either domain."""
_MULTIPLE_SUBSCRIBERS = 39
_SYSTEM_THREAD_ID = 1
_ZEROED_BUFFERS = 5
_FORCED = 1
_KEPT: list[Any] = []
"""What CUPTI was told to call: it must stay alive as long as the process."""

BuffersRequested = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
BuffersCompleted = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_ApiCallback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)
)


def candidates(paths: Sequence[str]) -> Iterator[Path]:
    """Yield the libraries there are, best first: of pip's packages on `paths`, then of toolkits."""
    for major in _MAJORS:
        name = f"libcupti.so.{major}"
        folders = [
            os.path.join(path, pattern) for path in paths for pattern in _PACKAGE_PATTERNS if path
        ]
        roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
        roots += sorted(glob.glob(TOOLKITS), reverse=True)
        folders += [
            os.path.join(root, pattern) for root in roots if root for pattern in _TOOLKIT_PATTERNS
        ]
        for folder in folders:
            yield from (Path(file) for file in sorted(glob.glob(os.path.join(folder, name))))


def find(paths: Sequence[str] | None = None) -> Path:
    """Find the libcupti that the installed driver can serve.

    Parameters
    ----------
    paths
        Where Python packages are; by default ``sys.path``.

    Raises
    ------
    MissingError
        There is no driver, no libcupti, or none that is old enough for the driver.
    """
    driver = driver_cuda_version()
    if driver is None:
        msg = (
            "there is no NVIDIA driver here (libcuda.so.1 does not load): install it, or give the "
            "container its GPUs (docker run --gpus all)."
        )
        raise MissingError(msg)
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    found = list(candidates(sys.path if paths is None else paths))
    for path in found:
        if int(path.suffix[1:]) <= driver // 1000:
            return path
    if found:
        msg = (
            f"{found[0]} is of CUDA {found[0].suffix[1:]}, and the driver supports CUDA "
            f"{driver // 1000}.{driver % 1000 // 10} at most: {get_cupti(driver // 1000)}."
        )
        raise MissingError(msg)
    msg = f"libcupti is not installed: {get_cupti(driver // 1000)}."
    raise MissingError(msg)


def get_cupti(major: int) -> str:
    """Say how to get the libcupti of CUDA `major`."""
    wanted = min(max(major, min(_MAJORS)), max(_MAJORS))
    return (
        f"pip install 'gpuscope[cuda{wanted}]' brings it, and so does a CUDA toolkit "
        f"({VARIABLE} may name it); {NSYS_INSTEAD}"
    )


def driver_cuda_version() -> int | None:
    """Return the newest CUDA the driver supports, such as 13000; None without a driver."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value


def wait_for_gpu() -> None:
    """Wait for the GPU work of this thread's context, if it has one."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()


def is_cuda_in_use() -> bool:
    """Whether this process has made a context on a GPU."""
    with contextlib.suppress(OSError):
        cuda = ctypes.CDLL("libcuda.so.1")
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:  # fails before cuInit
            for device in range(count.value):
                pointers = ctypes.byref(flags), ctypes.byref(active)
                cuda.cuDevicePrimaryCtxGetState(device, *pointers)
                if active.value:
                    return True
    return False


class Library:
    """A loaded libcupti.

    Raises
    ------
    MissingError
        `path` does not load, or is no libcupti of a known version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._cupti = ctypes.CDLL(str(path))
            number = ctypes.c_uint32()
            self._cupti.cuptiGetVersion(ctypes.byref(number))
        except (OSError, AttributeError) as error:
            msg = f"{path} does not load as libcupti ({error}): set {VARIABLE} to one that does."
            raise MissingError(msg) from None
        self.api_version = number.value
        self._subscriber = ctypes.c_void_p()

    @property
    def version_text(self) -> str:
        """The version of CUDA it is of."""
        number = self.api_version
        if number < 10_000:  # until 12.9 they were just counted
            return f"{self.path.suffix[1:]} (API {number})"
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of CUPTI.

        Raises
        ------
        MissingError
            It failed.
        """
        code = getattr(self._cupti, function)(*arguments)
        if code == _MULTIPLE_SUBSCRIBERS:
            msg = (
                "another profiler is attached to this program already (nsys, or torch.profiler, "
                "which may stay so when it has done), and CUPTI serves one: record in a process "
                "without it."
            )
            raise MissingError(msg)
        if code:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetResultString(code, ctypes.byref(text))
            said = (text.value or b"?").decode(errors="replace")
            msg = (
                f"{function} of {self.path} failed: {said} ({code}). The driver may not fit it: "
                f"set {VARIABLE} to another libcupti, {NSYS_INSTEAD}."
            )
            raise MissingError(msg)

    def has(self, function: str) -> bool:
        """Whether this version has `function`."""
        return hasattr(self._cupti, function)

    def now_ns(self) -> int:
        """Return the time on the clock of the records, which is UTC."""
        value = ctypes.c_uint64()
        self.call("cuptiGetTimestamp", ctypes.byref(value))
        return value.value

    def record_sizes(self, kinds: Sequence[int]) -> dict[int, int]:
        """Return how many bytes a record of each kind has in this version.

        CUPTI is asked to step over a record that is nothing but its kind.
        """
        sizes = {}
        for kind in kinds:
            buffer = (ctypes.c_uint64 * 512)(*([kind] * 512))
            at = ctypes.c_void_p()
            addresses = []
            for _ in range(2):
                self.call(
                    "cuptiActivityGetNextRecord",
                    buffer,
                    ctypes.c_size_t(ctypes.sizeof(buffer)),
                    ctypes.byref(at),
                )
                addresses.append(at.value or 0)
            sizes[kind] = addresses[1] - addresses[0]
        return sizes

    def call_names(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of the driver's and the runtime's calls, by callback id."""

        def names(domain: int) -> dict[int, str]:
            found = {}
            text = ctypes.c_char_p()
            for number in range(1, _LAST_CALLBACK_ID):
                code = self._cupti.cuptiGetCallbackName(domain, number, ctypes.byref(text))
                if code == 0 and text.value and _NAMELESS not in text.value.decode():
                    found[number] = text.value.decode()
            return found

        return names(_DRIVER_DOMAIN), names(_RUNTIME_DOMAIN)

    def register(
        self,
        requested: Callable[[Any, Any, Any], None],
        completed: Callable[[Any, Any, Any, Any, Any], None],
        heard: Callable[[bool, int, bool], None],
    ) -> None:
        """Let `requested` hand out zeroed buffers, and `completed` take them back.

        `heard` is called where :meth:`on_calls` asks for it. It is subscribed in any case: two
        profilers that use the same libcupti take each other's buffers without a word, but only one
        of them can subscribe.
        """

        def hear(_user: Any, domain: int, callback_id: int, data: Any) -> None:
            heard(domain == _DRIVER_DOMAIN, callback_id, bool(data[0]))

        callback = _ApiCallback(hear)
        _KEPT.append(callback)
        self.call("cuptiSubscribe", ctypes.byref(self._subscriber), callback, None)
        self.call("cuptiSetThreadIdType", _SYSTEM_THREAD_ID)
        yes, size = ctypes.c_uint8(1), ctypes.c_size_t(1)
        self.call(
            "cuptiActivitySetAttribute", _ZEROED_BUFFERS, ctypes.byref(size), ctypes.byref(yes)
        )
        callbacks = BuffersRequested(requested), BuffersCompleted(completed)
        _KEPT.extend(callbacks)
        self.call("cuptiActivityRegisterCallbacks", *callbacks)

    def release(self) -> None:
        """Let another profiler subscribe."""
        self.call("cuptiUnsubscribe", self._subscriber)

    def enable(self, kind: int, *, dump: bool = False) -> None:
        """Record activities of `kind`; with `dump` also those that exist already."""
        dump = dump and self.has("cuptiActivityEnableAndDump")
        self.call("cuptiActivityEnableAndDump" if dump else "cuptiActivityEnable", kind)

    def disable(self, kind: int) -> None:
        """Record no more activities of `kind`."""
        self.call("cuptiActivityDisable", kind)

    def enable_calls(self, is_driver: bool, but: Sequence[int]) -> None:
        """Record the calls of the driver or the runtime, but some; all, where it cannot tell.

        To enable the wanted ones alone costs a launch as much (1530 and 1581 ns were measured), and
        once CUDA is in use nothing is recorded that way.
        """
        self.enable(layout.DRIVER if is_driver else layout.RUNTIME)
        function = f"cuptiActivityEnable{'Driver' if is_driver else 'Runtime'}Api"
        if self.has(function):
            for callback_id in but:
                self.call(function, callback_id, ctypes.c_uint8(0))

    def on_calls(self, callback_ids: Sequence[tuple[bool, int]]) -> None:
        """Have what was registered called before and after some of the program's calls.

        `callback_ids` says of each whether it is one of the driver, and its id; the callback gets
        these two, and whether the call returns.
        """
        for is_driver, callback_id in callback_ids:
            domain = _DRIVER_DOMAIN if is_driver else _RUNTIME_DOMAIN
            self.call("cuptiEnableCallback", 1, self._subscriber, domain, callback_id)

    def flush(self) -> None:
        """Have all buffers handed back."""
        self.call("cuptiActivityFlushAll", _FORCED)

    def dropped(self) -> int:
        """Return the number of records lost for want of a buffer since the last call."""
        count = ctypes.c_size_t()
        self.call("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(count))
        return count.value
