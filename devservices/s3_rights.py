"""An S3 server that authenticates and authorizes: moto over TLS, with users, roles and policies as in IAM.

``with running_guarded_s3(folder) as s3: s3.user("writer", policy)`` creates users and roles; after `GuardedS3.enforce`
every call needs a signature and a permission.
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

_ANY_PRINCIPAL = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}],
}


@dataclass(frozen=True, slots=True)
class Keys:
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class GuardedS3:
    server: S3Server
    authority: Path
    """CA certificate that clients must trust."""

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
        """Create a user with a policy (a JSON text), and return its keys."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="policy", PolicyDocument=policy)
        created = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(created["AccessKeyId"], created["SecretAccessKey"])

    def role(self, name: str, policy: str) -> str:
        """Create a role that any user may assume, and return its ARN."""
        iam = self.client("iam")
        created = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_ANY_PRINCIPAL))
        iam.put_role_policy(RoleName=name, PolicyName="policy", PolicyDocument=policy)
        return str(created["Role"]["Arn"])

    def enforce(self) -> None:
        """Require a signature and a permission for every call from now on."""
        context = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection(HOST, self.server.port, context=context)
        connection.request("POST", "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        connection.close()
        if answer.status != http.HTTPStatus.OK:
            msg = f"moto does not enforce permissions: {answer.status}"
            raise RuntimeError(msg)


@contextmanager
def running_guarded_s3(folder: Path) -> Iterator[GuardedS3]:
    """Start the server with a bucket named ``lake``."""
    authority = Authority(folder / "certificates")
    with running_s3("moto", certificate=authority.issue("s3", HOST)) as server:
        server.create_bucket("lake")
        yield GuardedS3(server, authority.certificate)
