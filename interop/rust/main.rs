//! RocketMQ's gRPC client for Rust, which has producers and simple consumers: every type of
//! message, batches, check-back of transactions, filters, redelivery and a kill of the server.
//! Prints a line of JSON for each message. Argument: endpoints. After "ready", a line on standard
//! input lets the program go on when the server was started again.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const WAIT: Duration = Duration::from_secs(90);
const INVISIBLE: Duration = Duration::from_secs(10);
const DELAY_S: i64 = 4;

type Done = Result<(), ClientError>;

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

fn sent(how: &str, body: &str, id: &str, due: f64) {
    println!("{{\"sent\": \"{how}\", \"body\": \"{body}\", \"id\": \"{id}\", \"due\": {due}}}");
}

fn got(who: &str, message: &MessageView) {
    println!(
        "{{\"got\": \"{who}\", \"body\": \"{}\", \"id\": \"{}\", \"times\": {}, \"tags\": \"{}\", \
         \"keys\": \"{}\", \"colour\": \"{}\", \"at\": {}}}",
        String::from_utf8_lossy(message.body()),
        message.message_id(),
        message.delivery_attempt(),
        message.tag().unwrap_or_default(),
        message.keys().join(" "),
        message
            .properties()
            .get("colour")
            .map_or("", String::as_str),
        now(),
    );
}

fn options() -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(std::env::args().nth(1).unwrap());
    options.set_enable_tls(false);
    options.set_long_polling_timeout(Duration::from_secs(6)); // also its deadline; 5 are required
    options
}

fn described(builder: MessageBuilder, body: &str, tag: &str, number: usize) -> MessageBuilder {
    let number = number.to_string();
    builder
        .set_tag(tag)
        .set_keys(vec![format!("key-{body}")])
        .set_properties(HashMap::from([("colour", "blue"), ("n", number.as_str())]))
}

fn message(topic: &str, body: &str, tag: &str, number: usize) -> MessageBuilder {
    let builder = MessageBuilder::builder()
        .set_topic(topic)
        .set_body(body.into());
    described(builder, body, tag, number)
}

async fn sends(producer: &Producer) -> Done {
    for n in 0..6 {
        let body = format!("normal{n}");
        let made = message("GrpcNormal", &body, ["TagA", "Odd"][n % 2], 0).build()?;
        sent(
            "normal",
            &body,
            producer.send(made).await?.message_id(),
            0.0,
        );
        let body = format!("n{n}");
        let made = message("GrpcNormal", &body, "Number", n).build()?;
        sent(
            "numbered",
            &body,
            producer.send(made).await?.message_id(),
            0.0,
        );
    }
    let batch: Result<Vec<_>, _> = (0..3)
        .map(|n| message("GrpcBatch", &format!("batch{n}"), "TagA", n).build())
        .collect();
    for (n, receipt) in producer.batch_send(batch?).await?.iter().enumerate() {
        sent("batch", &format!("batch{n}"), receipt.message_id(), 0.0);
    }
    for n in 0..20 {
        let (key, body) = (
            format!("order-{}", n % 4),
            format!("{}-{:02}", n % 4, n / 4),
        );
        let builder = MessageBuilder::fifo_message_builder("GrpcFifo", body.clone().into(), key);
        let made = described(builder, &body, "TagA", n).build()?;
        sent("fifo", &body, producer.send(made).await?.message_id(), 0.0);
    }
    for body in ["commit", "rollback", "unknown"] {
        let builder = MessageBuilder::transaction_message_builder("GrpcTransaction", body.into());
        let made = described(builder, body, "TagA", 0).build()?;
        let transaction = producer.send_transaction_message(made).await?;
        match body {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
    }
    for (body, after) in [("later", DELAY_S), ("past", -DELAY_S)] {
        let due = now() as i64 + after;
        let builder = MessageBuilder::delay_message_builder("GrpcDelay", body.into(), due);
        let made = described(builder, body, "TagA", 0).build()?;
        sent(
            "delay",
            body,
            producer.send(made).await?.message_id(),
            due as f64,
        );
    }
    let made = message("GrpcFailing", "fails", "TagA", 0).build()?;
    sent(
        "failing",
        "fails",
        producer.send(made).await?.message_id(),
        0.0,
    );
    Ok(())
}

/// Start a consumer. The topic of dead letters exists only after the first one.
async fn consumer(group: &str, topic: &str) -> Result<SimpleConsumer, ClientError> {
    let end = Instant::now() + WAIT;
    loop {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![topic]);
        option.set_consumer_group(group);
        let mut made = SimpleConsumer::new(option, options())?;
        match made.start().await {
            Ok(()) => return Ok(made),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// Receive `count` messages and acknowledge all but those with the body `unacknowledged`.
async fn receives(
    who: &str,
    group: &str,
    topic: &str,
    filter: FilterExpression,
    count: usize,
    unacknowledged: &str,
) -> Done {
    let made = consumer(group, topic).await?;
    let (mut received, end) = (0, Instant::now() + WAIT);
    while received < count && Instant::now() < end {
        for message in made.receive_with(topic, &filter, 16, INVISIBLE).await? {
            got(who, &message);
            received += 1;
            if message.body() != unacknowledged.as_bytes() {
                made.ack(&message).await?;
            }
        }
    }
    Ok(())
}

fn tags(expression: &str) -> FilterExpression {
    FilterExpression::new(FilterType::Tag, expression)
}

async fn conversation(producer: &Producer) -> Done {
    let sql = FilterExpression::new(FilterType::Sql, "n > 2 AND colour = 'blue'");
    // A message that failed too often becomes a dead letter when it would be delivered once more.
    let fails = |count| {
        let (group, topic) = ("GrpcFailingGroup", "GrpcFailing");
        receives("failing", group, topic, tags("*"), count, "fails")
    };
    let failing = async {
        fails(2).await?;
        let dead = "%DLQ%GrpcFailingGroup";
        tokio::select! {
            failed = fails(1) => failed,
            done = receives("dead", "GrpcUndertaker", dead, tags("*"), 1, "") => done,
        }
    };
    tokio::try_join!(
        receives(
            "simple",
            "GrpcSimple",
            "GrpcNormal",
            tags("TagA || Odd"),
            6,
            ""
        ),
        receives("batch", "GrpcBatchGroup", "GrpcBatch", tags("*"), 3, ""),
        receives(
            "tags",
            "GrpcTags",
            "GrpcNormal",
            tags("Odd || Other"),
            3,
            ""
        ),
        receives("sql", "GrpcSql", "GrpcNormal", sql, 3, ""),
        receives("fifo", "GrpcOrderly", "GrpcFifo", tags("*"), 20, ""),
        receives("halves", "GrpcHalves", "GrpcTransaction", tags("*"), 2, ""),
        receives("delayed", "GrpcDelayGroup", "GrpcDelay", tags("*"), 2, ""),
        failing,
    )?;
    restarted(producer).await
}

async fn restarted(producer: &Producer) -> Done {
    let made = consumer("GrpcRestart", "GrpcNormal").await?;
    let mut bodies = vec!["after", "before"];
    let end = Instant::now() + WAIT;
    while let Some(body) = bodies.pop() {
        while producer
            .send(message("GrpcNormal", body, "Restart", 0).build()?)
            .await
            .is_err()
        {
            assert!(Instant::now() < end, "no send succeeds after the restart");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut has_come = false;
        while !has_come && Instant::now() < end {
            let received = made
                .receive_with("GrpcNormal", &tags("Restart"), 16, INVISIBLE)
                .await;
            for message in received.unwrap_or_default() {
                got("restart", &message);
                made.ack(&message).await?;
                has_come |= message.body() == body.as_bytes();
            }
        }
        if body == "before" {
            println!("{{\"ready\": \"restart\"}}");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() {
    let mut option = ProducerOption::default();
    option.set_topics(vec![
        "GrpcNormal",
        "GrpcFifo",
        "GrpcDelay",
        "GrpcTransaction",
    ]);
    let checker = Box::new(|_: String, message: MessageView| {
        got("check", &message);
        TransactionResolution::COMMIT
    });
    let mut producer = Producer::new_transaction_producer(option, options(), checker).unwrap();
    producer.start().await.unwrap();
    sends(&producer).await.unwrap();
    conversation(&producer).await.unwrap();
    println!("{{\"done\": true}}");
    std::process::exit(0);
}
