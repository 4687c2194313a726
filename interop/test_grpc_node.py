"""RocketMQ's gRPC client for Node.js, ``rocketmq-client-nodejs`` 1.0.8, at Firetrail's service."""

from __future__ import annotations

import pytest
from interop.grpc_checks import FEATURES, MESSAGES, Check, check_name, check_priority
from interop.grpc_servers import conversation, killed_conversation
from interop.stock import Event, client_environment, needs, output

NEEDS_JAVA = False


CERTIFICATE = """\
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=interop -days 7
 -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The output of the program over TLS; it accepts only certificates that it can verify."""
    needs("npm")
    needs("openssl")
    program = client_environment("node-grpc") / "client.js"
    folder = tmp_path_factory.mktemp("node")
    output(CERTIFICATE.split(), folder)
    trusted = f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={folder / 'cert.pem'}"
    settings = f"tlsCertPath={folder / 'cert.pem'}\ntlsKeyPath={folder / 'key.pem'}\n"
    node = ["env", trusted, "node", str(program)]
    return conversation(node, folder, "tls", "messages", settings=settings)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    needs("npm")
    program = client_environment("node-grpc") / "client.js"
    folder = tmp_path_factory.mktemp("node")
    return killed_conversation(["node", program], folder, "plain", "features-5.4")


@pytest.mark.parametrize("check", MESSAGES, ids=check_name)
def test_messages(messages: list[Event], check: Check) -> None:
    check(messages)


@pytest.mark.parametrize("check", [*FEATURES, check_priority], ids=check_name)
def test_features(features: list[Event], check: Check) -> None:
    check(features)
