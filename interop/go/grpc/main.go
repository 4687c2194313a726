// RocketMQ's gRPC client for Go: every type of message, push and simple consumers, check-back of
// transactions, and a kill of the server. Prints a line of JSON for each message. Arguments:
// endpoints, tls or plain, a part (messages, features, or features-5.4 for priorities, too), and the
// prefix of topics and groups if it is not Grpc. After "ready", a line on standard input lets the
// program go on when the server was started again. If the environment has CLIENT_USER and
// CLIENT_PASSWORD, all calls are signed; if it has CLIENT_TOPIC, the program only sends a message to
// this topic and consumes it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	wait      = 90 * time.Second
	await     = 5 * time.Second
	invisible = 15 * time.Second
	delay     = 4 * time.Second
)

type event map[string]any

var (
	background = context.Background()
	mutex      sync.Mutex
	got        = map[string]int{} // by whom: how many
	prefix     = "Grpc"           // of the names of topics and groups
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
	for end := time.Now().Add(wait); heard(who) < count; {
		if time.Now().After(end) {
			log.Fatalf("%s got %d of %d", who, heard(who), count)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{AccessKey: os.Getenv("CLIENT_USER"),
			AccessSecret: os.Getenv("CLIENT_PASSWORD")}}
}

func message(topic, body, tag string) *rmq.Message {
	made := &rmq.Message{Topic: topic, Body: []byte(body)}
	made.SetKeys("key-" + body)
	made.SetTag(tag)
	made.AddProperty("colour", "blue")
	return made
}

func received(who string, m *rmq.MessageView) event {
	return event{"got": who, "body": string(m.GetBody()), "keys": strings.Join(m.GetKeys(), " "),
		"tags": m.GetTag(), "id": m.GetMessageId(), "times": m.GetDeliveryAttempt(),
		"group": m.GetMessageGroup(), "colour": m.GetProperties()["colour"],
		"at": float64(time.Now().UnixMilli()) / 1000}
}

func send(p rmq.Producer, how string, m *rmq.Message) *rmq.SendReceipt {
	receipts, err := p.Send(background, m)
	must(err)
	said := event{"sent": how, "body": string(m.Body), "id": receipts[0].MessageID}
	if due := m.GetDeliveryTimestamp(); due != nil {
		said["due"] = float64(due.UnixMilli()) / 1000
	}
	say(said)
	return receipts[0]
}

func push(who, group, topic, tags string,
	consume func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	c, err := rmq.NewPushConsumer(config(group), rmq.WithPushAwaitDuration(await),
		rmq.WithPushSubscriptionExpressions(
			map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(tags)}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(m *rmq.MessageView) rmq.ConsumerResult {
				said := received(who, m)
				result := consume(m)
				say(said)
				return result
			}}))
	must(err)
	must(c.Start())
	return c
}

func succeeds(*rmq.MessageView) rmq.ConsumerResult { return rmq.SUCCESS }

func fails(*rmq.MessageView) rmq.ConsumerResult { return rmq.FAILURE }

// simple returns a simple consumer. The topic of dead letters exists only after the first one.
func simple(group, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	for end := time.Now().Add(wait); ; time.Sleep(200 * time.Millisecond) {
		c, err := rmq.NewSimpleConsumer(config(group), rmq.WithSimpleAwaitDuration(await),
			rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}))
		must(err)
		if err = c.Start(); err == nil {
			return c
		} else if !is(err, "TOPIC_NOT_FOUND") || time.Now().After(end) {
			log.Fatal(err)
		}
	}
}

func is(err error, code string) bool { return err != nil && strings.Contains(err.Error(), code) }

// receive says what a consumer receives, until it is count messages; consume acknowledges them.
func receive(c rmq.SimpleConsumer, who string, count int,
	consume func(rmq.SimpleConsumer, *rmq.MessageView) error) {
	for end := time.Now().Add(wait); heard(who) < count; {
		if time.Now().After(end) {
			log.Fatalf("%s got %d of %d", who, heard(who), count)
		}
		messages, err := c.Receive(background, 16, invisible)
		if is(err, "MESSAGE_NOT_FOUND") {
			continue
		}
		must(err)
		for _, m := range messages {
			must(consume(c, m))
			say(received(who, m))
		}
	}
	must(c.GracefulStop())
}

func acknowledge(c rmq.SimpleConsumer, m *rmq.MessageView) error { return c.Ack(background, m) }

func sends(p rmq.Producer) {
	for n := 0; n < 6; n++ {
		body := "normal" + strconv.Itoa(n)
		send(p, "normal", message(prefix+"Normal", body, []string{"TagA", "Odd"}[n%2]))
	}
	for n := 0; n < 20; n++ {
		m := message(prefix+"Fifo", fmt.Sprintf("%d-%02d", n%4, n/4), "TagA")
		m.SetMessageGroup("order-" + strconv.Itoa(n%4))
		send(p, "fifo", m)
	}
	for _, body := range []string{"commit", "rollback", "unknown"} {
		transaction := p.BeginTransaction()
		_, err := p.SendWithTransaction(background, message(prefix+"Transaction", body, "TagA"),
			transaction)
		must(err)
		if body == "commit" {
			must(transaction.Commit())
		} else if body == "rollback" {
			must(transaction.RollBack())
		}
	}
}

func messages(p rmq.Producer) {
	sends(p)
	push("push", prefix+"Push", prefix+"Normal", "*", succeeds)
	push("fifo", prefix+"Orderly", prefix+"Fifo", "*", succeeds)
	push("halves", prefix+"Halves", prefix+"Transaction", "*", succeeds)
	isPutOff := false
	receive(simple(prefix+"Simple", prefix+"Normal", rmq.NewFilterExpression("TagA")), "simple", 4,
		func(c rmq.SimpleConsumer, m *rmq.MessageView) error {
			if isPutOff || string(m.GetBody()) != "normal0" {
				return c.Ack(background, m)
			}
			isPutOff = true
			return c.ChangeInvisibleDuration(m, time.Second)
		})
	until("push", 6)
	until("fifo", 20)
	until("halves", 2)
}

func filtered(p rmq.Producer) {
	for n := 0; n < 6; n++ {
		m := message(prefix+"Normal", "n"+strconv.Itoa(n), "TagA")
		m.AddProperty("n", strconv.Itoa(n))
		send(p, "numbered", m)
	}
	condition := rmq.NewFilterExpressionWithType("n > 2 AND colour = 'blue'", rmq.SQL92)
	receive(simple(prefix+"Sql", prefix+"Normal", condition), "sql", 3, acknowledge)
}

// ordered fails for a message and sends further ones of its group before that: they have to wait.
// The client itself does not wait for a message that has failed, if it got more of them at once.
func ordered(p rmq.Producer) {
	keep := func(bodies ...string) {
		for _, body := range bodies {
			m := message(prefix+"Fifo", body, "TagA")
			m.SetMessageGroup("keep")
			send(p, "keep", m)
		}
	}
	keep("k0", "again-k1")
	hasFailed := false
	push("ordered", prefix+"Orderly", prefix+"Fifo", "*", func(m *rmq.MessageView) rmq.ConsumerResult {
		if hasFailed || string(m.GetBody()) != "again-k1" {
			return rmq.SUCCESS
		}
		hasFailed = true
		keep("k2", "k3")
		return rmq.FAILURE
	})
	until("ordered", 5)
}

// failing sends a message that its consumers never consume, and receives it as a dead letter.
func failing(p rmq.Producer) {
	send(p, "failing", message(prefix+"Failing", "fails", "TagA"))
	push("failing", prefix+"FailingGroup", prefix+"Failing", "*", fails)
	until("failing", 2)
	dead := simple(prefix+"Undertaker", "%DLQ%"+prefix+"FailingGroup", rmq.SUB_ALL)
	receive(dead, "dead", 1, acknowledge)
}

func delayed(p rmq.Producer) {
	push("delayed", prefix+"DelayGroup", prefix+"Delay", "*", succeeds)
	for _, body := range []string{"later", "recalled", "past"} {
		m := message(prefix+"Delay", body, "TagA")
		after := delay
		if body == "past" {
			after = -delay
		}
		m.SetDelayTimestamp(time.Now().Add(after))
		receipt := send(p, body, m)
		if body == "recalled" {
			id, err := p.Recall(background, prefix+"Delay", receipt.RecallHandle)
			must(err)
			say(event{"recalled": id, "id": receipt.MessageID})
		}
	}
	until("delayed", 2)
}

// prioritized sends all messages before it receives one: those with a higher priority come first.
func prioritized(p rmq.Producer) {
	for _, priority := range []int32{1, 3, 2} {
		m := message(prefix+"Priority", fmt.Sprintf("p%d", priority), "TagA")
		must(m.SetPriority(priority))
		send(p, "priority", m)
	}
	receive(simple(prefix+"Urgent", prefix+"Priority", rmq.SUB_ALL), "priority", 3, acknowledge)
}

func restarted(p rmq.Producer) {
	push("restart", prefix+"Restart", prefix+"Normal", "Restart", succeeds)
	send(p, "restart", message(prefix+"Normal", "before", "Restart"))
	until("restart", 1)
	say(event{"ready": "restart"})
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
	for end := time.Now().Add(wait); ; time.Sleep(500 * time.Millisecond) {
		_, err := p.Send(background, message(prefix+"Normal", "after", "Restart"))
		if err == nil {
			break
		} else if time.Now().After(end) {
			log.Fatalf("no send succeeds after the restart: %v", err)
		}
	}
	until("restart", 2)
}

// one sends a message and consumes it. It fails once, so that the message is delivered again. The
// program is killed.
func one(topic string) {
	p, err := rmq.NewProducer(config(""), rmq.WithTopics(topic))
	must(err)
	must(p.Start())
	send(p, "normal", message(topic, "signed", "TagA"))
	push("secured", "GO_GRPC_SECURED", topic, "*", func(m *rmq.MessageView) rmq.ConsumerResult {
		if m.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	until("secured", 2)
	say(event{"ready": "secured"})
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
}

// started returns a producer. A proxy that has just been started may be slow to answer.
func started() rmq.Producer {
	checker := func(m *rmq.MessageView) rmq.TransactionResolution {
		say(received("check", m))
		if string(m.GetBody()) == "rollback" {
			return rmq.ROLLBACK
		}
		return rmq.COMMIT
	}
	for end := time.Now().Add(wait); ; time.Sleep(200 * time.Millisecond) {
		p, err := rmq.NewProducer(config(""),
			rmq.WithTopics(prefix+"Normal", prefix+"Fifo", prefix+"Delay", prefix+"Transaction"),
			rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checker}))
		must(err)
		if err = p.Start(); err == nil {
			return p
		} else if time.Now().After(end) {
			log.Fatal(err)
		}
	}
}

func main() {
	rmq.EnableSsl = os.Args[2] == "tls"
	if topic := os.Getenv("CLIENT_TOPIC"); topic != "" {
		rmq.ResetLogger()
		one(topic)
		return
	}
	if len(os.Args) > 4 {
		prefix = os.Args[4]
	}
	rmq.ResetLogger()
	p := started()
	if os.Args[3] == "messages" {
		messages(p)
	} else {
		var parts sync.WaitGroup
		all := []func(rmq.Producer){filtered, ordered, failing, delayed}
		if os.Args[3] == "features-5.4" {
			all = append(all, prioritized)
		}
		for _, part := range all {
			parts.Go(func() { part(p) })
		}
		parts.Wait()
		restarted(p)
	}
	time.Sleep(time.Second) // acknowledgements are sent after the listener has returned
	say(event{"done": true})
}
