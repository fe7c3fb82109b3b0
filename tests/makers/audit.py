"""Record what Python code does to the machine by an audit hook (PEP 578) in a process of its own.

Recorded are files, network, processes and pickles. Ignored are reads of the interpreter, installed packages, compiled
code and machine facts. So are urllib3's test for IPv6, ldconfig (which torch for CUDA runs through ctypes when it is
imported), and the file by which Python checks the temporary folder.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import squeeze
from squeeze.numerics import code_cache

_KNOWN = (
    *(sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()),
    *("/proc", "/sys/fs/cgroup", "/sys/devices/system", "/dev/null", "/dev/urandom", "/etc/localtime"),
)
_HOOK = """
import json, os, sys

known, refused, news = json.loads(sys.argv[1]), set(json.loads(sys.argv[2])), []
STARTS = ("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "subprocess.", "os.exec", "os.posix_spawn", "os.spawn")

def is_called_by(*files):
    frame = sys._getframe(2)
    while frame:
        code = frame.f_code
        if code.co_filename.endswith(files) or f"{code.co_filename}:{code.co_name}".endswith(files):
            return True
        frame = frame.f_back
    return False

def is_known(path):
    path = os.path.realpath(os.fsdecode(path))
    return any(path == one or path.startswith(one + os.sep) for one in known)

def hook(event, arguments):
    if event == "open" and not isinstance(arguments[0], int):
        if not is_known(arguments[0]) and not is_called_by("tempfile.py:_get_default_tempdir"):
            news.append(f"open {os.fsdecode(arguments[0])}")
    elif event == "import" and arguments[0].partition(".")[0] in refused:
        news.append(f"import {arguments[0]}")
    elif event == "pickle.find_class" and not is_called_by("numba/core/caching.py", "numba/core/serialize.py"):
        news.append(f"unpickle {arguments[0]}.{arguments[1]}")
    elif event in ("socket.__new__", "socket.bind") and is_called_by("urllib3/util/connection.py"):
        pass
    elif event == "subprocess.Popen" and is_called_by("ctypes/util.py:_findSoname_ldconfig"):
        pass
    elif event.startswith(STARTS) or event in ("os.system", "os.fork"):
        news.append(event)

sys.addaudithook(hook)
exec(sys.stdin.read(), {"__name__": "audited"})
print(json.dumps(sorted(set(news))))
"""


def news(code: str, files: Iterable[Path] = (), refused: Iterable[str] = ()) -> list[str]:
    """Return what `code` did, as lines such as "open /etc/passwd", "import torch", "unpickle os.system",
    "socket.connect".

    Args:
        code: Python code to run
        files: files that it may read and write; a folder includes everything in it
        refused: modules that it may not import
    """
    known = [*_KNOWN, str(Path(squeeze.__file__).parent), str(code_cache.cache_root()), *map(str, files)]
    arguments = [json.dumps(sorted({str(Path(one).resolve()) for one in known})), json.dumps(sorted(refused))]
    done = subprocess.run(
        [sys.executable, "-c", _HOOK, *arguments], input=code, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found
