// npm's rocketmq-nodejs, a newer C++ client: every way to send and to consume. Argument: name server.
'use strict';

const { Producer, PushConsumer } = require('rocketmq-nodejs');
const { PASSWORD, run, say, TOPIC, until, USER } = require('./said');

async function send(producer, topic, body, tags = 'TagA') {
  const result = await producer.send(topic, body, { keys: 'key-' + body.slice(0, 20), tags });
  if (result.statusStr !== 'OK') throw new Error(JSON.stringify(result));
  say({ sent: 'sync', body, id: result.msgId, offset: result.offset });
}

async function consumer(nameServer, who, topic, tags, failures = 0) {
  const made = new PushConsumer('NAPI_' + who.toUpperCase(), who, { nameServer });
  if (USER) made.setSessionCredentials(USER, PASSWORD, '');
  made.subscribe(topic, tags);
  made.on('message', (got, ack) => {
    say({ got: who, body: got.body, keys: got.keys, tags: got.tags, id: got.msgId, topic: got.topic });
    ack.done(failures-- <= 0);
  });
  await made.start();
  return made;
}

// Sends a message and consumes it, which fails once: the retry topic of the group is used, too.
async function one(producer, nameServer) {
  await send(producer, TOPIC, 'signed');
  const made = await consumer(nameServer, 'secured', TOPIC, '*', 1);
  await until({ secured: 2 });
  return [ made ];
}

async function everything(producer, nameServer) {
  await send(producer, 'NapiSends', 'sync');
  await send(producer, 'NapiSends', 'large '.repeat(5000));
  await Promise.all([ 0, 1, 2, 3 ].map(n => send(producer, 'NapiSends', `at once ${n}`)));
  for (let n = 0; n < 6; n++) await send(producer, 'NapiTags', `${n}`, n % 2 ? 'Odd' : 'Even');
  await send(producer, 'NapiRetry', 'again');
  const consumers = [
    await consumer(nameServer, 'push', 'NapiSends', '*'),
    await consumer(nameServer, 'tags', 'NapiTags', 'Odd || Other'),
    await consumer(nameServer, 'retry', 'NapiRetry', '*', 2),
  ];
  await until({ push: 6, tags: 3, retry: 3 });
  return consumers;
}

run(async nameServer => {
  // Within its default of 3 s, a busy machine may not even have answered for the route.
  const options = { nameServer, sendMessageTimeout: 60000 };
  const producer = new Producer('NAPI_PRODUCER', 'producer', options);
  if (USER) producer.setSessionCredentials(USER, PASSWORD, '');
  await producer.start();
  const consumers = await (TOPIC ? one : everything)(producer, nameServer);
  for (const made of consumers) await made.shutdown();
  await producer.shutdown();
}, () => process.kill(process.pid, 'SIGKILL')); // the addon hangs now and then when the process exits
