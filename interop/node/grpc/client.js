// RocketMQ's gRPC client for Node.js: every type of message, push and simple consumers, check-back of
// transactions, and a kill of the server. Arguments: endpoints, tls or plain, a part (messages, features, or
// features-5.4 for priorities, too), and the prefix of topics and groups. After "ready", a line on standard input lets
// the program go on when the server was started again.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const { PASSWORD, run, say, sleep, TOPIC, until, USER, WAIT_MS } = require('./said');

const [ endpoints, security, part, given ] = process.argv.slice(2);
const prefix = given || 'Grpc';
const sessionCredentials = USER ? { accessKey: USER, accessSecret: PASSWORD } : undefined;
const BASE = { endpoints, namespace: '', sslEnabled: security === 'tls', sessionCredentials };
const DELAY_MS = 4000;

function message(topic, body, settings = {}) {
  const properties = new Map([ [ 'colour', 'blue' ], ...settings.properties || [] ]);
  return { topic, body: Buffer.from(body), tag: 'TagA', keys: [ 'key-' + body ], ...settings, properties };
}

function facts(who, got) {
  return {
    got: who, body: got.body.toString(), keys: got.keys.join(' '), tags: got.tag, id: got.messageId,
    times: got.deliveryAttempt, group: got.messageGroup, colour: got.properties.get('colour'), at: Date.now() / 1000,
  };
}

async function send(producer, how, made) {
  const receipt = await producer.send(made);
  const due = made.deliveryTimestamp && made.deliveryTimestamp.getTime() / 1000;
  say({ sent: how, body: made.body.toString(), id: receipt.messageId, due });
  return receipt;
}

async function push(who, consumerGroup, topic, tags, consume = () => ConsumeResult.SUCCESS) {
  const consumer = new PushConsumer({
    ...BASE, consumerGroup, subscriptions: new Map([ [ topic, tags ] ]),
    messageListener: {
      consume: async got => {
        const said = facts(who, got); // the client counts attempts in the message itself
        const result = await consume(got);
        say(said);
        return result;
      },
    },
  });
  await consumer.startup();
}

// The topic of dead letters exists only after the first one.
async function simple(consumerGroup, topic, filter) {
  for (const end = Date.now() + WAIT_MS; ;) {
    const consumer = new SimpleConsumer({
      ...BASE, consumerGroup, subscriptions: new Map([ [ topic, filter ] ]), awaitDuration: 5000,
    });
    try {
      await consumer.startup();
      return consumer;
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
}

async function receive(consumer, who, count, consume = got => consumer.ack(got)) {
  let received = 0;
  for (const end = Date.now() + WAIT_MS; received < count && Date.now() < end;) {
    for (const got of await consumer.receive(16, 15000)) {
      await consume(got);
      say(facts(who, got));
      received++;
    }
  }
}

async function sends(producer) {
  for (let n = 0; n < 6; n++) {
    await send(producer, 'normal', message(prefix + 'Normal', `normal${n}`, { tag: n % 2 ? 'Odd' : 'TagA' }));
  }
  for (let n = 0; n < 20; n++) {
    const body = `${n % 4}-0${Math.floor(n / 4)}`;
    await send(producer, 'fifo', message(prefix + 'Fifo', body, { messageGroup: `order-${n % 4}` }));
  }
  for (const body of [ 'commit', 'rollback', 'unknown' ]) {
    const transaction = producer.beginTransaction();
    await producer.send(message(prefix + 'Transaction', body), transaction);
    if (body === 'commit') await transaction.commit();
    if (body === 'rollback') await transaction.rollback();
  }
}

async function messages(producer) {
  await sends(producer);
  await push('push', prefix + 'Push', prefix + 'Normal', '*');
  await push('fifo', prefix + 'Orderly', prefix + 'Fifo', '*');
  await push('halves', prefix + 'Halves', prefix + 'Transaction', '*');
  const consumer = await simple(prefix + 'Simple', prefix + 'Normal', 'TagA');
  let isPutOff = false;
  await receive(consumer, 'simple', 4, async got => {
    if (isPutOff || got.body.toString() !== 'normal0') return consumer.ack(got);
    isPutOff = true;
    return consumer.changeInvisibleDuration(got, 1000);
  });
  await until({ push: 6, fifo: 20, halves: 2 });
}

async function filtered(producer) {
  for (let n = 0; n < 6; n++) {
    await send(producer, 'numbered', message(prefix + 'Normal', `n${n}`, { properties: [ [ 'n', `${n}` ] ] }));
  }
  const condition = new FilterExpression('n > 2 AND colour = \'blue\'', FilterType.SQL);
  await receive(await simple(prefix + 'Sql', prefix + 'Normal', condition), 'sql', 3);
}

// The group has an exponential policy: without one, the client makes a dead letter of what fails once.
async function ordered(producer) {
  for (const body of [ 'k0', 'again-k1', 'k2', 'k3' ]) {
    await send(producer, 'keep', message(prefix + 'Fifo', body, { messageGroup: 'keep' }));
  }
  let hasFailed = false;
  await push('ordered', prefix + 'Exponential', prefix + 'Fifo', '*', got => {
    if (hasFailed || got.body.toString() !== 'again-k1') return ConsumeResult.SUCCESS;
    hasFailed = true;
    return ConsumeResult.FAILURE;
  });
  await until({ ordered: 5 });
}

// A message that its consumers never consume is received as a dead letter.
async function failing(producer) {
  await send(producer, 'failing', message(prefix + 'Failing', 'fails'));
  await push('failing', prefix + 'FailingGroup', prefix + 'Failing', '*', () => ConsumeResult.FAILURE);
  await until({ failing: 2 });
  await receive(await simple(prefix + 'Undertaker', `%DLQ%${prefix}FailingGroup`, '*'), 'dead', 1);
}

async function delayed(producer) {
  await push('delayed', prefix + 'DelayGroup', prefix + 'Delay', '*');
  for (const body of [ 'later', 'recalled', 'past' ]) {
    const deliveryTimestamp = new Date(Date.now() + (body === 'past' ? -DELAY_MS : DELAY_MS));
    const sent = await send(producer, body, message(prefix + 'Delay', body, { deliveryTimestamp }));
    if (body === 'recalled') {
      const recalled = await producer.recallMessage(prefix + 'Delay', sent.recallHandle);
      say({ recalled: recalled.messageId, id: sent.messageId });
    }
  }
  await until({ delayed: 2 });
}

// All are sent before one of them is received: those with a higher priority come first.
async function prioritized(producer) {
  for (const priority of [ 1, 3, 2 ]) {
    await send(producer, 'priority', message(prefix + 'Priority', `p${priority}`, { priority }));
  }
  await receive(await simple(prefix + 'Urgent', prefix + 'Priority', '*'), 'priority', 3);
}

async function restarted(producer) {
  await push('restart', prefix + 'Restart', prefix + 'Normal', 'Restart');
  await send(producer, 'restart', message(prefix + 'Normal', 'before', { tag: 'Restart' }));
  await until({ restart: 1 });
  say({ ready: 'restart' });
  await new Promise(resolve => process.stdin.once('data', resolve));
  for (const end = Date.now() + WAIT_MS; ; await sleep(500)) {
    try {
      await producer.send(message(prefix + 'Normal', 'after', { tag: 'Restart' }));
      break;
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
  await until({ restart: 2 });
}

// The listener fails once, so that the message is delivered again. The program is killed.
async function one() {
  const producer = new Producer({ ...BASE, topics: [ TOPIC ] });
  await producer.startup();
  await send(producer, 'normal', message(TOPIC, 'signed'));
  let failures = 1;
  await push('secured', 'NODE_GRPC_SECURED', TOPIC, '*',
    () => (failures-- > 0 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS));
  await until({ secured: 2 });
  say({ ready: 'secured' });
  await new Promise(resolve => process.stdin.once('data', resolve));
}

run(TOPIC ? one : async () => {
  // A prefix is given for proxies of RocketMQ, where a client that starts with several topics waits for ever.
  const kinds = given ? [ 'Transaction' ] : [ 'Normal', 'Fifo', 'Delay', 'Transaction', 'Failing' ];
  const topics = kinds.map(kind => prefix + kind);
  const checker = {
    check: async got => {
      say(facts('check', got));
      return got.body.toString() === 'rollback' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
    },
  };
  const producer = new Producer({ ...BASE, topics, checker });
  await producer.startup();
  if (part === 'messages') {
    await messages(producer);
  } else {
    const parts = [ filtered, ordered, failing, delayed ];
    if (part === 'features-5.4') parts.push(prioritized);
    await Promise.all(parts.map(tried => tried(producer)));
    await restarted(producer);
  }
  await sleep(1000); // acknowledgements are sent after the listener has returned
  say({ done: true });
});
