// The Go client: go mod tidy && go run . 127.0.0.1:9876
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	rlog.SetLogLevel("error")
	namesrv := primitive.NewPassthroughResolver(os.Args[1:2])
	p, err := rocketmq.NewProducer(producer.WithNsResolver(namesrv), producer.WithGroupName("hello-producers"))
	must(err)
	must(p.Start())
	for n := 0; n < 3; n++ { // the first makes the topic, which a consumer wants to find
		body := []byte(fmt.Sprintf("hello %d", n))
		_, err := p.SendSync(context.Background(), primitive.NewMessage("HelloGo", body).WithTag("greeting"))
		must(err)
	}

	var left sync.WaitGroup
	left.Add(3)
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(namesrv), consumer.WithGroupName("hello-go"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	greetings := consumer.MessageSelector{Type: consumer.TAG, Expression: "greeting"}
	must(c.Subscribe("HelloGo", greetings, func(_ context.Context,
		messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			fmt.Println("got", string(message.Body))
			left.Done()
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	left.Wait()
	must(c.Shutdown())
	must(p.Shutdown())
}
