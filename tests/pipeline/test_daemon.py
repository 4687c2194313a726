"""The output of Spark's Python daemon about workers that end."""

import pytest

from firetrail.pipeline.daemon import print_exc


@pytest.mark.parametrize("gone", [BrokenPipeError, ConnectionResetError])
def test_a_closed_socket_is_not_printed(
    gone: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise gone("the session has ended")
    except gone:
        print_exc()
    assert capsys.readouterr().err == ""


def test_other_errors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise EOFError("cut off")
    except EOFError:
        print_exc()
    assert "EOFError: cut off" in capsys.readouterr().err
