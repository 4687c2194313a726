"""The settings of TLS."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from firetrail.broker.broker_conf_file import load_entries
from firetrail.errors import ConfigError, MisspeltKeyError
from firetrail.format.files.java_properties import Entry, parse_properties
from firetrail.namesrv import NameServerConfig
from firetrail.proxy.proxy_config import ProxyConfig
from firetrail.tls.tls_config import SETTINGS, TlsConfig, TlsMode


def test_the_keys_of_rocketmq(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.server.mode=enforcing\ntls.server.keyPath=a.key\ntls.server.certPath=a.pem\n"
        "tls.server.keyPassword=canary\ntls.server.need.client.auth=require\n"
        "tls.server.authClient=true\ntls.server.trustCertPath=ca.pem\ntls.enable=true\n"
        "tls.client.keyPath=c.key\ntls.client.certPath=c.pem\ntls.client.keyPassword=canary\n"
        "tls.client.authServer=false\ntls.client.trustCertPath=ca.pem\n"
        "tls.test.mode.enable=false\nuser_names=DNS:*\ntls.server.color=x\n"
    )
    file.chmod(0o600)
    config, remarks = TlsConfig.from_file(str(file))
    assert config == TlsConfig(
        mode="enforcing",
        certificate="a.pem",
        key="a.key",
        key_password="canary",
        client_auth="require",
        trust="ca.pem",
        user_names="DNS:*",
        is_client=True,
        client_certificate="c.pem",
        client_key="c.key",
        client_key_password="canary",
        verify_servers=False,
        client_trust="ca.pem",
    )
    assert config.server_mode is TlsMode.ENFORCING
    assert "canary" not in repr(config)
    assert [remark.split(": ", 1)[1] for remark in remarks] == [
        "tls.test.mode.enable has no effect: Firetrail has no built-in certificate",
        "tls.server.color is not a key of RocketMQ's tls.properties; did you mean tls.server.mode?",
    ]


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mod=enforcing\n")
    with pytest.raises(MisspeltKeyError, match=r"line 1: .*; did you mean tls\.server\.mode\?"):
        TlsConfig.from_file(str(file))


def test_a_file_with_a_password_is_private(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.keyPassword=canary\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others can read the secret; run 'chmod 600"):
        TlsConfig.from_file(str(file))
    file.write_text("tls.server.mode=disabled\n")
    assert TlsConfig.from_file(str(file))[0].mode == "disabled"
    with pytest.raises(ConfigError, match="the file does not exist"):
        TlsConfig.from_file(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "read", [load_entries, NameServerConfig.from_entries, ProxyConfig.from_entries]
)
def test_the_file_of_a_server_has_no_settings_of_tls(
    read: Callable[[Mapping[str, Entry]], object],
) -> None:
    keys = [key for setting in SETTINGS.values() for key in setting.keys]
    assert "tls.server.mode" in keys
    for key in (*keys, "tls.test.mode.enable"):
        with pytest.raises(ConfigError) as caught:
            read(parse_properties(f"{key}=canary", "b.conf"))
        shown = "(hidden)" if "Password" in key else "canary"
        assert str(caught.value).startswith(
            f"b.conf line 1: {key} = '{shown}': settings of TLS are not read from this file; put it"
            " into tls.properties, the file that the option --tls-config names"
        )
    with pytest.raises(ConfigError, match=r"names, or use the option --tls-mode$"):
        read(parse_properties("tls.server.mode=enforcing", "b.conf"))
    read(parse_properties("tls.config.file=/etc/tls.properties", "b.conf"))


def test_the_mode_follows_the_certificate() -> None:
    assert TlsConfig().server_mode is TlsMode.DISABLED
    assert TlsConfig(certificate="a").server_mode is TlsMode.PERMISSIVE
    assert TlsConfig(certificate="a", mode="disabled").server_mode is TlsMode.DISABLED


def test_values_that_are_not_allowed() -> None:
    with pytest.raises(ConfigError, match="mode = 'on': must be disabled, permissive, enforcing"):
        TlsConfig(mode="on")
    with pytest.raises(ConfigError, match=r"need\.client\.auth = 'require': name the issuers"):
        TlsConfig(client_auth="require")
    with pytest.raises(ConfigError, match="client certificates are always verified"):
        TlsConfig(client_auth="optional", trust="x", verify_clients=False)
    with pytest.raises(ConfigError, match=r"user_names = 'X:\*': 'X:\*' is not a pattern"):
        TlsConfig(user_names="X:*")


def test_values_from_elsewhere_take_precedence(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=permissive\ntls.server.certPath=a.pem\n")
    config, _ = TlsConfig.combined(str(file), certificate="b.pem", key="b.key", trust="", mode="")
    assert (config.mode, config.certificate, config.key) == ("permissive", "b.pem", "b.key")
    assert config.client_auth == "none"
    config, _ = TlsConfig.combined("", trust="ca.pem")
    assert config.client_auth == "require"
    file.write_text("tls.server.need.client.auth=optional\ntls.server.trustCertPath=x\n")
    assert TlsConfig.combined(str(file), trust="ca.pem")[0].client_auth == "optional"
