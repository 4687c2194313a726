// What was sent and got, a line of JSON for each message, and how often each consumer got one. With
// CLIENT_USER and CLIENT_PASSWORD in the environment, programs sign all requests; with CLIENT_TOPIC, they
// only send a message to this topic and consume it.
'use strict';

const WAIT_MS = 60000;
const got = {};

exports.WAIT_MS = WAIT_MS;
exports.USER = process.env.CLIENT_USER;
exports.PASSWORD = process.env.CLIENT_PASSWORD;
exports.TOPIC = process.env.CLIENT_TOPIC;

exports.say = event => {
  console.log(JSON.stringify(event));
  if (event.got) got[event.got] = (got[event.got] || 0) + 1;
};

exports.sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

exports.until = async wanted => {
  const end = Date.now() + WAIT_MS;
  const missing = () => Object.keys(wanted).some(who => (got[who] || 0) < wanted[who]);
  while (missing() && Date.now() < end) await exports.sleep(20);
};

exports.run = (main, leave = () => process.exit(0)) => main(process.argv[2]).then(leave, error => {
  console.error(error);
  process.exit(1);
});
