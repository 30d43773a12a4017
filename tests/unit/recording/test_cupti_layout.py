"""Fields lie where the C compiler puts them, by the headers of the CUDA toolkit of this machine."""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuscope.recording.cupti import layout, library

HEADERS = sorted(glob.glob(f"{library.TOOLKITS}/include/cupti_activity.h"))
RECORDS = {
    layout.MEMCPY: "Memcpy",
    layout.MEMSET: "Memset",
    layout.DRIVER: "API",
    layout.RUNTIME: "API",
    layout.DEVICE: "Device",
    layout.CONTEXT: "Context",
    layout.CONCURRENT_KERNEL: "Kernel",
    layout.MARKER: "Marker",
    layout.MARKER_DATA: "MarkerData",
    layout.OVERHEAD: "Overhead",
    layout.MEMCPY_PEER: "MemcpyPtoP",
    layout.CUDA_EVENT: "CudaEvent",
    layout.STREAM: "Stream",
    layout.SYNCHRONIZATION: "Synchronization",
    layout.GRAPH_TRACE: "GraphTrace",
}
"""What the header calls the record of a kind; versions of it are numbered."""


@pytest.mark.skipif(not HEADERS or not shutil.which("gcc"), reason="needs a CUDA toolkit and gcc")
def test_fields_lie_where_the_compiler_puts_them(tmp_path: Path) -> None:
    header = Path(HEADERS[-1])
    text = header.read_text(errors="replace")
    assert RECORDS.keys() == layout.FIELDS.keys()
    prints, wanted = [], []
    for kind, name in RECORDS.items():
        newest = re.findall(rf"\}}\s*(CUpti_Activity{name}\d*);", text)[-1]
        for field, (offset, code) in layout.FIELDS[kind].items():
            member = field
            if field in {"processId", "threadId"} and kind in {layout.MARKER, layout.OVERHEAD}:
                member = f"objectId.pt.{field}"
            place = f"offsetof({newest}, {member}), sizeof((({newest}*)0)->{member})"
            prints.append(f'printf("%zu %zu\\n", {place});')
            wanted.append(f"{offset} {int(code[2:])}")
    source = "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n"
    source += "#include <cuda.h>\n#include <cupti_activity.h>\n"
    (tmp_path / "offsets.c").write_text(f"{source}int main() {{ {' '.join(prints)} }}\n")
    subprocess.run(
        ["gcc", f"-I{header.parent}", "offsets.c", "-o", "offsets"], cwd=tmp_path, check=True
    )
    found = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)

    assert found.stdout.splitlines() == wanted
