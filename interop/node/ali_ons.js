// npm's ali-ons: every way to send and to consume. Argument: name server.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');
const { PASSWORD, run, say, sleep, TOPIC, until, USER } = require('./said');

const quiet = { debug() {}, info() {}, warn() {}, error: console.error };

// Keys of all queues but the first: what belongs there, the client spreads over all queues.
const SHARDS = [ '3', 'a', 'b', 'shard0' ];

function options(namesrv, instanceName) {
  const credentials = { accessKeyId: USER, accessKeySecret: PASSWORD };
  return { nameSrv: [ namesrv ], instanceName, logger: quiet, httpclient: {}, ...credentials };
}

function message(topic, body, tag = 'TagA', properties = {}) {
  const made = new Message(topic, tag, body);
  made.keys = [ 'key-' + body.slice(0, 20) ];
  Object.assign(made.properties, properties);
  return made;
}

async function send(producer, how, made) {
  const body = made.body.toString(); // the client replaces it when it compresses
  const result = await producer.send(made);
  if (result.sendStatus !== 'SEND_OK') throw new Error(JSON.stringify(result));
  say({ sent: how, body, id: result.msgId, queue: result.messageQueue.queueId, offset: result.queueOffset });
}

async function consumer(namesrv, who, topic, filter, settings = {}, failures = 0) {
  const made = new Consumer({
    ...options(namesrv, who),
    consumerGroup: 'ALI_' + who.toUpperCase(),
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    ...settings,
  });
  made.on('error', error => console.error(who, error.message));
  made.subscribe(topic, filter, async got => {
    say({
      got: who, body: got.body.toString(), keys: got.keys, tags: got.tags, id: got.msgId, queue: got.queueId,
      offset: got.queueOffset, times: got.reconsumeTimes, topic: got.topic, colour: got.properties.colour,
    });
    if (failures-- > 0) throw new Error('not yet'); // ACTION_RETRY counts for the first delivery only
  });
  await made.ready();
  return made;
}

// Sends a message and consumes it, which fails once: the retry topic of the group is used, too.
async function one(producer, namesrv) {
  await send(producer, 'sync', message(TOPIC, 'signed'));
  const made = await consumer(namesrv, 'secured', TOPIC, '*', {}, 1);
  await until({ secured: 2 });
  return [ made ];
}

async function everything(producer, namesrv) {
  await send(producer, 'sync', message('AliSends', 'sync', 'TagA', { colour: 'blue' }));
  await send(producer, 'sync', message('AliSends', 'large '.repeat(5000)));
  const delayed = message('AliSends', 'delayed');
  delayed.delayTimeLevel = 1;
  await producer.send(delayed);
  for (let n = 0; n < 20; n++) {
    const key = SHARDS[n % 4];
    const made = message('AliOrder', `${key}-0${Math.floor(n / 4)}`);
    made.shardingKey = key;
    await send(producer, 'by key', made);
  }
  for (let n = 0; n < 6; n++) {
    await send(producer, 'sync', message('AliFilter', `${n}`, n % 2 ? 'Odd' : 'Even', { n: `${n}` }));
  }
  await send(producer, 'sync', message('AliRetry', 'again'));
  const consumers = [
    await consumer(namesrv, 'push', 'AliSends', '*'),
    await consumer(namesrv, 'order', 'AliOrder', '*'),
    await consumer(namesrv, 'tags', 'AliFilter', 'Odd || Other'),
    await consumer(namesrv, 'sql', 'AliFilter', { expressionType: 'SQL92', subString: 'n > 1 AND n < 5' }),
    await consumer(namesrv, 'retry', 'AliRetry', '*', {}, 2),
    await consumer(namesrv, 'one', 'AliAll', '*', { isBroadcast: true }),
    await consumer(namesrv, 'two', 'AliAll', '*', { isBroadcast: true }),
  ];
  await sleep(1000);
  for (let n = 0; n < 4; n++) await send(producer, 'sync', message('AliAll', `all${n}`));
  await until({ push: 3, order: 20, tags: 3, sql: 3, retry: 3, one: 4, two: 4 });
  return consumers;
}

run(async namesrv => {
  const producer = new Producer({ ...options(namesrv, 'producer'), producerGroup: 'ALI_PRODUCER' });
  await producer.ready();
  const consumers = await (TOPIC ? one : everything)(producer, namesrv);
  for (const made of consumers) await made.close();
  await producer.close();
});
