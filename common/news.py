"""What writers say of new markers: the sign for a loader that waits for them (``schedule: on-marker``).

Rules:

1. The sign is an empty object, one for each stream and writer: its path says all. A writer makes it after the markers
   that it speaks of, at most once a second, over the one that may still be there.
2. A loader lists the one folder of these objects, takes away what it finds, and *then* lists the stage. So whatever
   marker was told of is in that listing, or a later sign tells of it; one that is made again while it is taken away
   loses nothing.
3. It is a sign and no proof. One that is lost, or was never made (a marker by hand, a writer with other settings),
   makes a load late, until the next look at everything.
"""

from __future__ import annotations

from common.data_files import escape, shortened

NEWS = "news"
TELL_EVERY_S = 1.0
"""Rule 1."""


def news_folder(app_id: str) -> str:
    """Where the signs of one stream are."""
    return f"{NEWS}/{escape(shortened(app_id))}/"


def news_path(app_id: str, writer: str) -> str:
    """The sign of one stream and writer."""
    return f"{news_folder(app_id)}{escape(shortened(writer))}.news"
