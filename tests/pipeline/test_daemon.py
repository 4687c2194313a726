"""What Spark's Python daemon says of workers that end."""

import pytest

from firetrail.pipeline.daemon import print_exc


@pytest.mark.parametrize("gone", [BrokenPipeError, ConnectionResetError])
def test_nothing_of_a_socket_that_nobody_listens_to(
    gone: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise gone("the session has ended")
    except gone:
        print_exc()
    assert capsys.readouterr().err == ""


def test_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise EOFError("cut off")
    except EOFError:
        print_exc()
    assert "EOFError: cut off" in capsys.readouterr().err
