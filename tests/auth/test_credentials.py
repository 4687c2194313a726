"""Credentials never show their secret."""

import copy
import pickle

import pytest

from firetrail.auth.credentials import Credentials
from firetrail.errors import ConfigError

SECRET = "canary-of-the-secret"


def credentials() -> Credentials:
    return Credentials("alice", SECRET, f"token-{SECRET}")


def test_the_text_shows_the_access_key_only() -> None:
    for text in (repr(credentials()), str(credentials()), f"{credentials()}"):
        assert text == "Credentials(access_key='alice')"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_credentials_cannot_be_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="the credentials of alice cannot be pickled") as caught:
        pickle.dumps(credentials(), protocol)
    assert SECRET not in str(caught.value)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(credentials())


def test_an_empty_key_is_refused_without_showing_the_other() -> None:
    with pytest.raises(ConfigError, match="access_key = '': must not be empty") as caught:
        Credentials("", SECRET)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match=r"must not be empty \(user alice\)"):
        Credentials("alice", "")


def test_credentials_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        credentials().secret_key = "other"  # type: ignore[misc]
