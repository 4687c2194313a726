// npm's ali-ons: npm install ali-ons && node hello_node.js 127.0.0.1:9876
// The topic has to be there: firetrail topic create HelloNode
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const options = {
  nameSrv: [ process.argv[2] ],
  httpclient: {}, // asked for, but used for addresses from the web only
  accessKeyId: 'none',
  accessKeySecret: 'none',
};

async function main() {
  const producer = new Producer({ ...options, producerGroup: 'hello-producers' });
  await producer.ready();
  for (let n = 0; n < 3; n++) await producer.send(new Message('HelloNode', 'greeting', `hello ${n}`));

  let left = 3;
  const consumeFromWhere = 'CONSUME_FROM_FIRST_OFFSET';
  const consumer = new Consumer({ ...options, consumerGroup: 'hello-node', consumeFromWhere });
  await new Promise(resolve => {
    consumer.subscribe('HelloNode', 'greeting', async message => {
      console.log('got', message.body.toString());
      if (--left === 0) resolve();
    });
  });
  await consumer.close();
  process.exit(0);
}

main();
