// The Go client v2: every way to send and to consume. Arguments: name server, broker. If the
// environment has CLIENT_USER and CLIENT_PASSWORD, all requests are signed; if it has CLIENT_TOPIC,
// the program only sends a message to this topic and consumes it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const wait = 60 * time.Second

type event map[string]any

var (
	background = context.Background()
	namesrv    primitive.NsResolver
	signer     = primitive.Credentials{AccessKey: os.Getenv("CLIENT_USER"),
		SecretKey: os.Getenv("CLIENT_PASSWORD")}
	mutex sync.Mutex
	got   = map[string]int{} // by whom: how many
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func say(said event) {
	line, err := json.Marshal(said)
	must(err)
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Println(string(line))
	if who, ok := said["got"].(string); ok {
		got[who]++
	}
}

func heard(who string) int {
	mutex.Lock()
	defer mutex.Unlock()
	return got[who]
}

func until(who string, count int) {
	for end := time.Now().Add(wait); heard(who) < count && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

func message(topic, body, tag string) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(body))
	return made.WithTag(tag).WithKeys([]string{"key-" + body[:min(len(body), 20)]})
}

func received(who string, m *primitive.MessageExt) event {
	return event{"got": who, "body": string(m.Body), "keys": m.GetKeys(), "tags": m.GetTags(),
		"id": m.MsgId, "offset_id": m.OffsetMsgId, "queue": m.Queue.QueueId, "offset": m.QueueOffset,
		"colour": m.GetProperty("colour"), "times": m.ReconsumeTimes, "topic": m.Topic}
}

func sent(how string, body string, result *primitive.SendResult) {
	if result.Status != primitive.SendOK {
		log.Fatal(result.String())
	}
	say(event{"sent": how, "body": body, "id": result.MsgID, "offset_id": result.OffsetMsgID,
		"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset})
}

func newProducer(group string, options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append(options, producer.WithNsResolver(namesrv),
		producer.WithGroupName(group), producer.WithInstanceName(group),
		producer.WithCredentials(signer))...)
	must(err)
	must(made.Start())
	return made
}

func newConsumer(who, topic string, selector consumer.MessageSelector, failures int,
	options ...consumer.Option) rocketmq.PushConsumer {
	group := "GO_" + strings.ToUpper(who)
	made, err := rocketmq.NewPushConsumer(append([]consumer.Option{consumer.WithNsResolver(namesrv),
		consumer.WithGroupName(group), consumer.WithInstance(who), consumer.WithCredentials(signer),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, options...)...)
	must(err)
	must(made.Subscribe(topic, selector, func(_ context.Context,
		messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			say(received(who, m))
			if failures > 0 {
				failures--
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(made.Start())
	return made
}

func byTag(tags string) consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
}

func sends(p rocketmq.Producer) {
	blue := message("GoSends", "sync", "TagA")
	blue.WithProperty("colour", "blue")
	large := message("GoSends", strings.Repeat("large ", 5000), "TagA")
	for _, m := range []*primitive.Message{blue, large} {
		result, err := p.SendSync(background, m)
		must(err)
		sent("sync", string(m.Body), result)
	}
	answered := make(chan error, 1)
	must(p.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
		if err == nil {
			sent("async", "async", result)
		}
		answered <- err
	}, message("GoSends", "async", "TagA")))
	must(<-answered)
	must(p.SendOneWay(background, message("GoSends", "oneway", "TagA")))
	batch := []*primitive.Message{}
	for n := 0; n < 3; n++ {
		batch = append(batch, message("GoSends", "batch"+strconv.Itoa(n), "TagA"))
	}
	_, err := p.SendSync(background, batch...)
	must(err)
	_, err = p.SendSync(background, message("GoSends", "delayed", "TagA").WithDelayTimeLevel(1))
	must(err)
	for n := 0; n < 6; n++ {
		m := message("GoFilter", strconv.Itoa(n), []string{"Even", "Odd"}[n%2])
		m.WithProperty("n", strconv.Itoa(n))
		_, err = p.SendSync(background, m)
		must(err)
	}
	_, err = p.SendSync(background, message("GoRetry", "again", "TagA"))
	must(err)
}

func order() {
	p := newProducer("GO_ORDER", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for n := 0; n < 20; n++ {
		key := strconv.Itoa(n % 4)
		m := message("GoOrder", fmt.Sprintf("%s-%02d", key, n/4), "TagA").WithShardingKey(key)
		result, err := p.SendSync(background, m)
		must(err)
		sent("orderly", string(m.Body), result)
	}
	must(p.Shutdown())
}

type listener struct{}

func (listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return map[string]primitive.LocalTransactionState{"commit": primitive.CommitMessageState,
		"rollback": primitive.RollbackMessageState, "unknown": primitive.UnknowState}[string(m.Body)]
}

func (listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	say(received("check", m))
	return primitive.CommitMessageState
}

func transactions() rocketmq.TransactionProducer {
	p, err := rocketmq.NewTransactionProducer(listener{}, producer.WithNsResolver(namesrv),
		producer.WithGroupName("GO_TRANSACTION"), producer.WithInstanceName("transaction"))
	must(err)
	must(p.Start())
	for _, body := range []string{"commit", "rollback", "unknown"} {
		result, err := p.SendMessageInTransaction(background, message("GoHalves", body, "TagA"))
		must(err)
		say(event{"sent": "transaction", "body": body, "id": result.MsgID})
	}
	return p
}

// request asks after the first heartbeat, a second after the start: replies find a client by it.
func request(asking, replying rocketmq.Producer) rocketmq.PushConsumer {
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(namesrv),
		consumer.WithGroupName("GO_REPLY"), consumer.WithInstance("reply"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(c.Subscribe("GoAsk", byTag("*"), func(_ context.Context,
		messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			reply, err := consumer.CreateReplyMessage(m, nil)
			must(err)
			reply.Body = []byte("re: " + string(m.Body)) // CreateReplyMessage forgets it
			if _, err = replying.SendSync(background, reply); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	reply, err := asking.Request(background, 20*time.Second, message("GoAsk", "ask", "TagA"))
	must(err)
	say(event{"got": "request", "body": string(reply.Body)})
	return c
}

func pull() {
	c, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(namesrv),
		consumer.WithGroupName("GO_PULL"), consumer.WithInstance("pull"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(c.Subscribe("GoFilter", byTag("Even")))
	must(c.Start())
	for end := time.Now().Add(wait); heard("pull") < 3 && time.Now().Before(end); {
		request, err := c.Poll(background, time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		must(err)
		for _, m := range request.GetMsgList() {
			say(received("pull", m))
		}
		c.ACK(background, request, consumer.ConsumeSuccess)
	}
	must(c.Shutdown())
}

// one sends a message and consumes it. It fails once, so that it also uses the group's retry topic.
func one(topic string) {
	p := newProducer("GO_PRODUCER")
	result, err := p.SendSync(background, message(topic, "signed", "TagA"))
	must(err)
	sent("sync", "signed", result)
	c := newConsumer("secured", topic, byTag("*"), 1)
	until("secured", 2)
	must(c.Shutdown())
	must(p.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	namesrv = primitive.NewPassthroughResolver(os.Args[1:2])
	if topic := os.Getenv("CLIENT_TOPIC"); topic != "" {
		one(topic)
		return
	}
	administrator, err := admin.NewAdmin(admin.WithResolver(namesrv))
	must(err)
	for _, topic := range []string{"GoSends", "GoOrder", "GoFilter", "GoHalves", "GoAsk", "GoAll",
		"%RETRY%GO_RETRY"} { // not there when the group starts, it would be looked for 20 seconds later
		must(administrator.CreateTopic(background, admin.WithTopicCreate(topic),
			admin.WithBrokerAddrCreate(os.Args[2]), admin.WithReadQueueNums(4),
			admin.WithWriteQueueNums(4)))
	}
	p := newProducer("GO_PRODUCER")
	sends(p)
	order()
	half := transactions()
	model := consumer.WithConsumerModel(consumer.BroadCasting)
	for n := 0; n < 4; n++ {
		_, err := p.SendSync(background, message("GoAll", "all"+strconv.Itoa(n), "TagA"))
		must(err)
	}
	sql := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n > 1 AND n < 5"}
	consumers := []rocketmq.PushConsumer{
		newConsumer("push", "GoSends", byTag("*"), 0),
		newConsumer("orderly", "GoOrder", byTag("*"), 0, consumer.WithConsumerOrder(true)),
		newConsumer("tags", "GoFilter", byTag("Odd || Other"), 0),
		newConsumer("sql", "GoFilter", sql, 0),
		newConsumer("retry", "GoRetry", byTag("*"), 2),
		newConsumer("halves", "GoHalves", byTag("*"), 0),
		newConsumer("one", "GoAll", byTag("*"), 0, model),
		newConsumer("two", "GoAll", byTag("*"), 0, model),
	}
	pull()
	for who, count := range map[string]int{"push": 8, "orderly": 20, "tags": 3, "sql": 3, "retry": 3,
		"halves": 2, "one": 4, "two": 4} {
		until(who, count)
	}
	consumers = append(consumers, request(p, newProducer("GO_REPLIES")))
	for _, c := range consumers {
		must(c.Shutdown())
	}
	must(half.Shutdown())
	must(p.Shutdown())
}
