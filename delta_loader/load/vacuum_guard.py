"""Protects files that are about to be committed from VACUUM (tables/vacuum.py), by copying those that are too old.

Rules:

1. A file's age starts at the time that the store returned right before the commit. It ends at this machine's time or at
   the newest file's, whichever is later. If this machine's clock is behind the store's, an old file thus does not seem
   young while anything new is staged.
2. A copy is made by the store itself where possible, below the same folder. It serves all commits of a pass until it is
   too old itself.
3. If a copy cannot be made, the file is missing or the store fails. Nothing is committed then, and the next pass checks
   again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common.ports import ObjectStore
from common.stage.markers import StagedFile
from delta_loader.tables.commits import TableCommit
from delta_loader.tables.vacuum import fresh_path, guarded_age_s, vacuum_problem

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports


class VacuumGuard:
    def __init__(self, ports: Ports, log: FilteringBoundLogger) -> None:
        self._ports = ports
        self._log = log
        self._ages_s: dict[str, float] = {}
        self._modified_ms: dict[tuple[str, str], int] = {}
        self._copies: dict[tuple[str, str], tuple[StagedFile, int]] = {}
        """With the time at which each was made."""

    def table(self, url: str, properties: Mapping[str, str]) -> None:
        if url not in self._ages_s and (problem := vacuum_problem(properties, 0.0)) is not None:
            self._log.warning("staged files are not safe from VACUUM", table=url, problem=problem)
        self._ages_s[url] = guarded_age_s(properties)

    def damage(self, store: ObjectStore, url: str, file: StagedFile) -> str | None:
        """The damage of a staged file in the store (`StagedFile.damage`); its age is remembered."""
        item = store.stat(file.path)
        if item is not None:
            self._modified_ms[url, file.path] = item.modified_ms
        return file.damage(item)

    def renewed(self, commit: TableCommit) -> TableCommit:
        """The commit with copies in place of files that a VACUUM may have listed. Raises StoreError."""
        url = commit.target.url
        now_ms = max([self._ports.clock.wall_ms(), *self._modified_ms.values()])
        before_ms = now_ms - int(self._ages_s.get(url, 0.0) * 1000)
        old = [file for file in commit.files if self._modified_ms.get((url, file.path), 0) < before_ms]
        if not old:
            return commit
        store, unique = self._ports.open_store(url), self._ports.new_id()
        made = {file.path: self._copies.get((url, file.path), (file, 0)) for file in old}
        missing = [file for file in old if made[file.path][1] < before_ms]

        def renew(file: StagedFile) -> StagedFile:
            fresh = replace(file, path=fresh_path(file.path, unique))
            store.copy(file.path, fresh.path)
            return fresh

        for file, fresh in zip(missing, self._ports.parallel(renew, missing), strict=True):
            made[file.path] = self._copies[url, file.path] = fresh, now_ms
        if missing:
            self._log.info("files that a VACUUM may have listed are copied", table=url, files=len(missing))
        return replace(commit, files=tuple(made.get(file.path, (file, 0))[0] for file in commit.files))
