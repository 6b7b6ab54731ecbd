"""What botocore knows of all services, parsed once per process: most of what a client of S3 costs."""

from functools import cache

from botocore.loaders import Loader
from botocore.session import Session


@cache
def share_services() -> None:
    """Have all clients that this process makes later, and its forks, use what the first one has parsed."""
    shared: dict[object, object] = {}
    make = Loader.__init__

    def share(self: Loader, *given: object, **named: object) -> None:
        make(self, *given, **named)
        self._cache = shared

    Loader.__init__ = share
    Session().create_client("s3", "us-east-1", aws_access_key_id="k", aws_secret_access_key="s")
