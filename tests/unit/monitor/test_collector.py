"""One round on a real folder: containers that do anything to their files, and folders that go."""

from __future__ import annotations
