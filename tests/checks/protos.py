"""Checks the protos and the committed stubs, or writes the stubs anew.

    python tests/checks/protos.py           lint, regenerate, compare; exit 1 on a difference
    python tests/checks/protos.py --write   regenerate into protos/

Needs the `stubs` extra. The compiler is pinned there: code from another version differs, and code
from a newer one refuses to import on the oldest protobuf that users may have.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parents[2] / "protos"
PACKAGE = Path("innkeeper/v1")
GOOGLE = Path(sysconfig.get_path("purelib")) / "google"
OUTPUTS = ("python", "grpc_python", "mypy", "mypy_grpc")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(target: Path) -> None:
    """Compile every proto into `target`."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"-I{GOOGLE.parent}"]
    command += [f"--{output}_out={target}" for output in OUTPUTS]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # where protoc finds its plugins
    subprocess.run(
        [*command, *sources], cwd=PROTOS, check=True, env={"PATH": path}, stderr=subprocess.DEVNULL
    )


def lint() -> None:
    """Run buf's lint and format check. buf wants every import in its workspace, so the one that
    is Google's is put beside a copy."""
    buf = str(Path(sys.executable).parent / "buf")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "protos"
        shutil.copytree(PROTOS, workspace, ignore=shutil.ignore_patterns("*.py", "*.pyi"))
        (workspace / "google/rpc").mkdir(parents=True)
        shutil.copy(GOOGLE / "rpc/status.proto", workspace / "google/rpc")
        subprocess.run([buf, "lint"], cwd=workspace, check=True)
        subprocess.run(
            [buf, "format", "--diff", "--exit-code", "--path", str(PACKAGE)],
            cwd=workspace,
            check=True,
        )


def stale() -> list[str]:
    """Names of committed stubs that differ from fresh ones, in either direction."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        names = {
            path.name
            for root in (fresh, PROTOS)
            for pattern in GENERATED
            for path in (root / PACKAGE).glob(pattern)
        }
        _, different, missing = filecmp.cmpfiles(
            fresh / PACKAGE, PROTOS / PACKAGE, sorted(names), shallow=False
        )
        return different + missing


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        generate(PROTOS)
        return 0
    lint()
    found = stale()
    for name in found:
        sys.stderr.write(f"{PACKAGE / name} is stale: run tests/checks/protos.py --write\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
