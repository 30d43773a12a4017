"""NCCL beyond what CuPy calls: communicators of few channels, and what the links allow."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness.links import Link, link_between
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.errors import MissingError, ProgramError

_LIBRARY = "libnccl.so.2"
_ID_BYTES = 128
_MAGIC = 0xCAFEBEEF
_CONFIG_VERSION = 21700
"""NCCL 2.17, the first whose configuration has the number of channels; later ones take it."""
_UNDEFINED = -(1 << 31)
_SUCCESS = 0
_METHODS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "allReduce": ("ncclAllReduce", "ppnii"),
        "broadcast": ("ncclBroadcast", "ppnii"),
        "reduce": ("ncclReduce", "ppniii"),
        "reduceScatter": ("ncclReduceScatter", "ppnii"),
        "allGather": ("ncclAllGather", "ppni"),
        "send": ("ncclSend", "pnii"),
        "recv": ("ncclRecv", "pnii"),
    }
)
"""CuPy's method to NCCL's function and its arguments but communicator and stream, the last two."""
_KINDS = {"p": ctypes.c_void_p, "n": ctypes.c_size_t, "i": ctypes.c_int}


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


class _Config(ctypes.Structure):
    """``ncclConfig_t`` of NCCL 2.17."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


class LimitedCommunicator:
    """A communicator of all ranks, whose kernels have just so many blocks: NCCL's channels.

    It has the methods of ``cupy.cuda.nccl.NcclCommunicator`` for the operations; CuPy's own cannot
    be configured.
    """

    def __init__(self, ranks: Ranks, channels: int) -> None:
        """Start it; all ranks must.

        Raises
        ------
        MissingError
            There is no NCCL library, or one before 2.17.
        ProgramError
            NCCL failed.
        """
        self._library = _library()
        identity = _UniqueId()
        if ranks.rank == 0:
            self._call(self._library.ncclGetUniqueId, ctypes.byref(identity))
        ctypes.memmove(ctypes.byref(identity), ranks.agree(bytes(identity)), _ID_BYTES)
        config = _Config(
            size=ctypes.sizeof(_Config),
            magic=_MAGIC,
            version=_CONFIG_VERSION,
            blocking=_UNDEFINED,
            cga_cluster_size=_UNDEFINED,
            min_ctas=channels,
            max_ctas=channels,
            net_name=None,
            split_share=_UNDEFINED,
        )
        self._handle = ctypes.c_void_p()
        start = self._library.ncclCommInitRankConfig
        start.argtypes = (
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            _UniqueId,
            ctypes.c_int,
            ctypes.POINTER(_Config),
        )
        handle, size, rank = ctypes.byref(self._handle), ranks.size, ranks.rank
        self._call(start, handle, size, identity, rank, ctypes.byref(config))
        for method, (name, kinds) in _METHODS.items():
            function = getattr(self._library, name)
            function.argtypes = (
                *(_KINDS[kind] for kind in kinds),
                ctypes.c_void_p,
                ctypes.c_void_p,
            )
            setattr(self, method, partial(self._operate, function))

    def _operate(self, function: Any, *arguments: int) -> None:
        *of_operation, stream = arguments
        self._call(function, *of_operation, self._handle, stream)

    def _call(self, function: Any, *arguments: Any) -> None:
        code = function(*arguments)
        if code != _SUCCESS:
            explain = self._library.ncclGetErrorString
            explain.restype = ctypes.c_char_p
            raise ProgramError(f"NCCL failed: {explain(code).decode()}.")


def _library() -> Any:
    """Return the NCCL library that CuPy uses, loaded already."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        library.ncclCommInitRankConfig  # noqa: B018 - is it there?
    except (OSError, AttributeError) as error:
        raise MissingError(
            f"NCCL 2.17 or newer is needed to choose channels ({error}): "
            "`pip install nvidia-nccl-cu13` (or cu12) brings it."
        ) from error
    return library


def nccl_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that change what NCCL does."""
    return {name: value for name, value in environment.items() if name.startswith("NCCL_")}


def nvls_note(settings: Mapping[str, str]) -> list[str]:
    """Say that rates are not those that are published, where NVLink SHARP is off."""
    if settings.get("NCCL_NVLS_ENABLE") != "0":
        return []
    return [
        "NCCL_NVLS_ENABLE=0: the switches add nothing up, so bus bandwidths are not comparable "
        "with published ones"
    ]


def narrowest_link(ranks: Ranks) -> Link:
    """Return the link with the lowest limit between a rank and the next; not known over hosts."""
    hosts = ranks.gather(ranks.mpi.Get_processor_name())
    if len(set(hosts)) > 1:
        return Link(None)
    buses = ranks.gather(ranks.session.pci_bus_id)
    links = [link_between(one, buses[(at + 1) % len(buses)]) for at, one in enumerate(buses)]
    if any(link.limit_bytes_per_s is None for link in links):
        return Link(None)
    return min(links, key=lambda link: link.limit_bytes_per_s or 0.0)
