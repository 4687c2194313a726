"""The C++ client in Python: pip install rocketmq==0.4.4; python hello_cpp.py 127.0.0.1:9876.

In an environment of its own: other packages call their module ``rocketmq``, too.
"""

import sys
import threading

from rocketmq.client import Message, Producer, PushConsumer

namesrv = sys.argv[1]
producer = Producer("hello-producers")
producer.set_namesrv_addr(namesrv)
producer.start()
for n in range(3):
    message = Message("HelloCpp")
    message.set_tags("greeting")
    message.set_body(f"hello {n}")
    producer.send_sync(message)

left = threading.Semaphore(0)


def listener(message: Message) -> None:
    """Returning confirms the message, an error has it delivered again."""
    sys.stdout.write(f"got {message.body.decode()}\n")  # in one piece: threads print at once
    sys.stdout.flush()
    left.release()


consumer = PushConsumer("hello-cpp")
consumer.set_instance_name("hello-consumer")  # not the producer's, which knows no subscriptions
consumer.set_namesrv_addr(namesrv)
consumer.subscribe("HelloCpp", listener, "greeting")
consumer.start()
for _ in range(3):
    left.acquire()
consumer.shutdown()
producer.shutdown()
