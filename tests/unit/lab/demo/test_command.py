"""The command line of the demo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from tessera.cli import main


def test_a_picture_needs_the_story() -> None:
    result = CliRunner().invoke(main, ["demo", "--no-story", "--picture", "x.svg"])
    assert result.exit_code == 2
    assert "leave out --no-story" in result.output


def test_a_file_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--once", "--log-file", str(tmp_path / "missing" / "log")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.output


def test_help_says_how_it_ends_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from tessera.cli import main;"
        "print(CliRunner().invoke(main, ['demo', '--help']).output);"
        "print('heavy:', sorted({'rich', 'numpy', 'aiohttp', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "Exit codes:" in done.stdout, done.stderr
    assert "heavy: []" in done.stdout
