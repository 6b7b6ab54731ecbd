"""What writers say of new markers: the sign for a loader that waits for them (``schedule: on-marker``).

Rules:

1. A sign is made after the markers that it speaks of, by a writer, at most once a second for a stream. In the store it
   is an empty object, one for each stream and writer, made over the one that may still be there: its path says all.
2. A loader lists the one folder of these objects, takes away what it finds, and *then* lists the stage. So whatever
   marker was told of is in that listing, or a later sign tells of it; one that is made again while it is taken away
   loses nothing.
3. It is a sign and no proof. One that is lost, or was never made (a marker by hand, a writer with other settings),
   makes a load late, until the next look at everything.
4. With a control topic (``loader.control_topic``) the sign is a message: its key is the stream's app id, and its value
   is the same for all, so that a message of anybody else is passed over. Nothing in it is believed but the name of a
   stream that the loader has.
"""

from __future__ import annotations

from common.stage.data_files import escape, shortened

NEWS = "news"
TELL_EVERY_S = 1.0
"""Rule 1."""
MESSAGE = b"kafka-delta-express:news:1"
"""The value of a message; another version of it would end in another number."""


def news_folder(app_id: str) -> str:
    """Where the signs of one stream are."""
    return f"{NEWS}/{escape(shortened(app_id))}/"


def news_path(app_id: str, writer: str) -> str:
    """The sign of one stream and writer."""
    return f"{news_folder(app_id)}{escape(shortened(writer))}.news"


def news_key(app_id: str) -> bytes:
    """The key of a stream's message; its value is `MESSAGE`."""
    return app_id.encode()


def told_by(key: bytes | None, value: bytes | None) -> str | None:
    """The stream that a message tells of; None for one that is no sign."""
    if key is None or value != MESSAGE:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
