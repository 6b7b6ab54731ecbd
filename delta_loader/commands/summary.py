"""The output of ``delta-loader run --once``: aligned text for people, JSON for programs."""

import json
from collections.abc import Sequence

from common.printable import joined
from common.sizes import counted
from delta_loader.load.report import StreamReport


def as_text(reports: Sequence[StreamReport], problems: Sequence[str]) -> str:
    lines = []
    for report in reports:
        end = "failed" if report.failure else "done"
        loaded = (report.commits, "commit"), (report.files, "file"), (report.rows, "row")
        lines.append(f"{report.app_id}: {end}, {', '.join(counted(count, noun) for count, noun in loaded)}")
        if report.replacements:
            lines.append(f"  replay requests completed: {report.replacements}")
        if report.strays:
            lines.append(f"  {counted(report.strays, 'late claim')} of freed positions moved to stray/")
        for partition, reason in report.held.items():
            lines += [f"  {partition} is held ({reason.reason}): {reason.problem}", f"  → {reason.remedy}"]
        if report.failure:
            lines += [f"  {report.failure.problem}", f"  → {report.failure.remedy}"]
    return joined([*lines, *problems])


def as_json(reports: Sequence[StreamReport], problems: Sequence[str]) -> str:
    streams = [
        {
            "app_id": report.app_id,
            "commits": report.commits,
            "files": report.files,
            "rows": report.rows,
            "replacements": report.replacements,
            "settled": report.settled,
            "strays": report.strays,
            "held": report.held_json,
            "failure": None if report.failure is None else str(report.failure),
        }
        for report in reports
    ]
    return json.dumps({"streams": streams, "problems": list(problems)}, indent=2)
