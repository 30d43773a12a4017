"""A stand-in for nsys: a script that behaves as real ones were seen to, faults included.

``make(folder, version=…, fault=…)`` writes it. Like nsys it detaches an agent into a session of its
own, puts the program into another one, and on SIGINT stops it and writes the report.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from gpuscope import samples

OLD_OPTIONS = (
    "--trace= --sample= --output= --force-overwrite= --capture-range= --nvtx-capture= --delay="
    " --duration= --cpuctxsw= --capture-range-end="
)
NEW_OPTIONS = f"{OLD_OPTIONS} --cuda-graph-trace= --cuda-event-trace= --session-new="

_SCRIPT = """\
#!{python}
import itertools, os, pathlib, shutil, signal, subprocess, sys, time

VERSION, FAULT, TRACE, OPTIONS = {version!r}, {fault!r}, {trace!r}, {options!r}
args = sys.argv[1:]

if args == ["--version"]:
    print(f"NVIDIA Nsight Systems version {{VERSION}}-abcdef0")
    sys.exit(0)
if args == ["export", "--help"]:
    print("--include-blobs=\\n--include-json=" if FAULT != "no-blobs" else "--lazy=")
    sys.exit(0)
if args == ["profile", "--help"]:
    print(*(f"\\t{{option}}\\n" for option in OPTIONS.split()))
    sys.exit(0)

if args[0] == "stop":
    with open(pathlib.Path(__file__).with_name("stopped"), "a") as file:
        print(*args, file=file)
    sys.exit(0)

if args[0] == "export":
    out, report = args[args.index("-o") + 1], args[-1]
    pathlib.Path(__file__).with_name("exported").write_text(" ".join(args))
    print("Processing 3 events: [==50%]\\rProcessing 3 events: [====100%]")
    if FAULT == "too-old":
        print("Exportation error: Version number is invalid: 2099@1@1@1-0v0")
        sys.exit(1)
    if FAULT == "too-old-for-builds":
        print("Exportation error: Version not supported: 99999999")
        sys.exit(1)
    if FAULT == "garbage":
        print("Exportation error: Cannot read from stream.")
        sys.exit(1)
    if FAULT == "export-disk-full":
        pathlib.Path(out).touch()
        print("Failed to close database connection")
        print("[QuadDCommon::tag_message*] = database or disk is full")
        sys.exit(0)
    idle = FAULT == "idle-rank" and "/rank1/" in report
    shutil.copyfile(pathlib.Path(__file__).with_name("idle.sqlite") if idle else TRACE, out)
    sys.exit(0)

assert args[0] == "profile"
options = list(itertools.takewhile(lambda arg: arg.startswith("--"), args[1:]))
command = args[1 + len(options):]
out = next(option for option in options if option.startswith("--output=")).split("=", 1)[1]

def end(signum, frame):
    program.send_signal(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    write_report()
    os._exit(128 + signum)

def write_report():
    if FAULT == "never-captured":
        print("Generated:", flush=True)
        return
    print("Generating '/tmp/nsys-report-0000.qdstrm'")
    if FAULT == "importer-fails":
        pathlib.Path(out + ".qdstrm").write_bytes(b"raw")
        print("Importer error status: Importation failed.\\nError {{\\n      Items {{")
        print("        Type: ErrorText\\n"
              '        Value: "Failed to get number of the device CPUs."\\n      }}\\n}}')
        print("Generated:\\n    " + out + ".qdstrm", flush=True)
        return
    if FAULT == "no-importer":
        pathlib.Path(out + ".qdstrm").write_bytes(b"raw")
        print("Importer error status: An unknown error occurred.")
        print("Generated:\\n    " + out + ".qdstrm", flush=True)
        return
    if FAULT == "disk-full":
        print("Importer error status: Importation failed.")
        print(f"Failed to create '{{out}}.qdstrm': No space left on device.")
        print("Generated:", flush=True)
        return
    if FAULT == "elsewhere":
        print(f"Failed to create '{{out}}.nsys-rep': Not a directory.")
        other = os.environ["FAKE_NSYS_TEMP"] + "/nsys-report-1111.nsys-rep"
        pathlib.Path(other).write_bytes(b"report")
        print("Generated:\\n    " + other, flush=True)
        return
    if FAULT == "silent":
        return
    report = f"NVIDIA Tegra Profiler Report {{VERSION.replace('.', '@')}}-0v0"
    pathlib.Path(out.replace("%%", "%") + ".nsys-rep").write_text(report)
    print("[1/1] [====50%  ] trace.nsys-rep\\r[1/1] [=====100%] trace.nsys-rep")
    print("Generated:\\n    " + out + ".nsys-rep", flush=True)

if FAULT == "refuses":
    print("unrecognised option '--bogus'\\n\\nusage: nsys profile [<args>] [application]")
    sys.exit(1)

# The agent: detached twice, and in no hurry to go.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.3 if FAULT != "stubborn" else 600)
    os._exit(0)

program = subprocess.Popen(command, start_new_session=True)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
code = program.wait()
if FAULT == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
write_report()
sys.exit(code if code >= 0 else 128 - code)
"""


def make(
    folder: Path,
    *,
    version: str = "2025.3.2.474",
    fault: str = "",
    trace: str | Path = "streams",
    options: str = NEW_OPTIONS,
) -> Path:
    """Write an nsys into `folder` and return its path; exports yield `trace`, shipped or a path.

    With the fault ``idle-rank`` that of rank 1 yields ``idle.sqlite`` of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nsys"
    script = _SCRIPT.format(
        python=sys.executable,
        version=version,
        fault=fault,
        trace=str(samples.path(trace) if isinstance(trace, str) else trace),
        options=options,
    )
    path.write_text(textwrap.dedent(script))
    path.chmod(0o755)
    return path
