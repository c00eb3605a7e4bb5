"""Generates the message modules of kubelet's APIs from their .proto files, and formats them.

Run by `make proto`. With a folder as argument they go there instead; a test compares them with those checked in.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
PROTOS = sorted(path.relative_to(SOURCES) for path in SOURCES.glob("tessera/wire/kubelet/*.proto"))

HEADER = "# ruff: noqa\n"
STUB_HEADER = '# ruff: noqa\n# mypy: disable-error-code="type-arg"\n'
"""the stubs use Mapping without type arguments"""
NEVER_RUN = "if not _descriptor._USE_C_DESCRIPTORS:"
"""what follows is for Python without the compiled part of protobuf"""


def generate(target: Path) -> list[Path]:
    """Writes all modules below this folder; returns their paths."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"-I{SOURCES}", f"--python_out={folder}", f"--pyi_out={folder}"]
        names = [str(path) for path in PROTOS]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *outputs, *names], check=True)
        made = []
        for path in sorted(Path(folder).rglob("*.py*")):
            module = target / path.relative_to(folder)
            module.parent.mkdir(parents=True, exist_ok=True)
            header = STUB_HEADER if module.suffix == ".pyi" else HEADER
            text = path.read_text().replace(NEVER_RUN, f"{NEVER_RUN}  # pragma: no cover")
            module.write_text(formatted(header + text, name=module.name))
            made.append(module)
        return made


def formatted(text: str, *, name: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "120", "--stdin-filename", name, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for written in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES):
        print(written)
