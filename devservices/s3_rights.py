"""An S3 server that checks who asks and what they may: moto over TLS, with users, roles and policies as in IAM.

``with running_guarded_s3(folder) as s3: s3.user("writer", policy)`` makes users and roles; after `Guarded.enforce` each
call needs a signature and a right.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from devservices.certificates import Authority
from devservices.ports import HOST
from devservices.s3 import S3Server, running_s3

_ANYBODY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}],
}


@dataclass(frozen=True, slots=True)
class Keys:
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class Guarded:
    server: S3Server
    authority: Path
    """What clients have to trust."""

    def client(self, service: str, keys: Keys | None = None) -> Any:  # noqa: ANN401 - boto3's clients have no types
        """A client for ``s3``, ``iam`` or ``sts``."""
        keys = keys or Keys(self.server.access_key, self.server.secret_key)
        return boto3.client(
            service,
            endpoint_url=self.server.endpoint_url,
            region_name=self.server.region,
            verify=str(self.authority),
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
        )

    def user(self, name: str, policy: str) -> Keys:
        """Make a user who may do what the policy, a JSON text, allows."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="policy", PolicyDocument=policy)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(made["AccessKeyId"], made["SecretAccessKey"])

    def role(self, name: str, policy: str) -> str:
        """Make a role that anybody may take, and return its ARN."""
        iam = self.client("iam")
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_ANYBODY))
        iam.put_role_policy(RoleName=name, PolicyName="policy", PolicyDocument=policy)
        return str(made["Role"]["Arn"])

    def enforce(self) -> None:
        """From now on each call needs a signature and a right."""
        context = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection(HOST, self.server.port, context=context)
        connection.request("POST", "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        connection.close()
        if answer.status != http.HTTPStatus.OK:
            msg = f"moto does not check rights: {answer.status}"
            raise RuntimeError(msg)


@contextmanager
def running_guarded_s3(folder: Path) -> Iterator[Guarded]:
    """Start the server, with the bucket ``lake``."""
    authority = Authority(folder / "certificates")
    with running_s3("moto", certificate=authority.issue("s3", HOST)) as server:
        server.create_bucket("lake")
        yield Guarded(server, authority.certificate)
