"""Messages as consumers receive them."""

import pytest
from tests.client.clusters import received

from firetrail.client import Received
from firetrail.errors import FormatError
from firetrail.format.layout import COMPRESSED


def test_queue_id_is_the_number_of_the_queue() -> None:
    assert received(3).queue_id == 3


def test_the_error_of_a_body_that_cannot_be_decompressed_names_the_message() -> None:
    message = received(3)
    record = message.record._replace(sys_flag=COMPRESSED, body=b"raw", queue_offset=17)
    with pytest.raises(FormatError) as error:
        _ = Received(message.queue, record).body
    queue = message.queue
    place = f"{queue.topic} queue 3 of {queue.broker_name} at offset 17: it is not valid zlib: "
    assert place in str(error.value)
