"""Notifications of new markers, as Kafka messages and as objects."""

from common.stage.notifications import (
    MESSAGE,
    NOTIFICATIONS,
    notification_folder,
    notification_key,
    notification_path,
    notified_stream,
)


def test_notification_object_is_in_the_folder_of_its_stream_alone() -> None:
    app_ids = ("a", "a/b", "..", "ümlaut")
    for app_id in app_ids:
        folder, name = notification_path(app_id, "b/../c").rsplit("/", 1)
        assert folder.split("/")[:-1] == [NOTIFICATIONS]
        assert (f"{folder}/", name.isascii()) == (notification_folder(app_id), True)
    assert len({notification_folder(app_id) for app_id in app_ids}) == len(app_ids)


def test_notification_names_its_stream_and_other_messages_name_none() -> None:
    for app_id in ("orders", "a/b=c", "ümlaut", "🦆 of the west"):
        assert notified_stream(notification_key(app_id), MESSAGE) == app_id
        assert notified_stream(notification_key(app_id), MESSAGE + b"0") is None
        assert notified_stream(notification_key(app_id), None) is None
    assert notified_stream(None, MESSAGE) is None
    assert notified_stream(b"\xff\xfe", MESSAGE) is None
