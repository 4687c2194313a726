"""The output of Spark's Python daemon about workers that end."""

import pytest

from firetrail.pipeline.daemon import print_exc, print_uncaught


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


def test_a_runner_whose_query_is_stopped_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    """It is waiting for Spark, or about to report to it."""
    for error in (BrokenPipeError("stopped"), ConnectionResetError("stopped")):
        print_uncaught(type(error), error, None)
    assert capsys.readouterr().err == ""
    print_uncaught(ValueError, ValueError("a bug"), None)
    assert "ValueError: a bug" in capsys.readouterr().err
