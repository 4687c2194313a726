// Checks a history of sends and reads for linearizability with porcupine.
//
// The history is on standard input, one operation per line of JSON (see tests/torture/records/history.py).
// Every queue is modelled as an append-only log. The verdict of each queue is printed; the exit code
// is 1 if a queue is not linearizable, or if the time is over before porcupine knows.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client   int     `json:"client"`
	Kind     string  `json:"kind"`
	Queue    int     `json:"queue"`
	Member   int     `json:"member"`
	Called   int64   `json:"called"`
	Returned int64   `json:"returned"`
	Ok       bool    `json:"ok"`
	Offset   int     `json:"offset"`
	Ids      []int64 `json:"ids"`
	End      int     `json:"end"`
}

// entry is the last message of a log, and with its predecessors the whole log. It never changes, so
// porcupine can keep as many states as it likes. The pointer jump makes old offsets quick to find.
type entry struct {
	id     int64
	offset int
	hash   uint64
	before *entry
	jump   *entry
}

func empty() *entry {
	log := &entry{offset: -1}
	log.before, log.jump = log, log
	return log
}

func (log *entry) append(id int64) *entry {
	jump := log
	if log.offset-log.jump.offset == log.jump.offset-log.jump.jump.offset {
		jump = log.jump.jump
	}
	hash := (log.hash ^ uint64(id)) * 0x9E3779B97F4A7C15
	hash ^= hash >> 29
	return &entry{id: id, offset: log.offset + 1, hash: hash, before: log, jump: jump}
}

func (log *entry) has(id int64, offset int) bool {
	if offset < 0 || offset > log.offset {
		return false
	}
	for log.offset != offset {
		if log.jump.offset >= offset {
			log = log.jump
		} else {
			log = log.before
		}
	}
	return log.id == id
}

func (log *entry) length() int { return log.offset + 1 }

func step(state, input, _ interface{}) (bool, interface{}) {
	log, op := state.(*entry), input.(operation)
	if op.Kind == "send" {
		return log.length() == op.Offset, log.append(op.Ids[0])
	}
	// A read may be answered with an end that is a little old. The other kinds state the end itself.
	if op.End > log.length() || op.Kind != "read" && op.End != log.length() {
		return false, state
	}
	for index, id := range op.Ids {
		if !log.has(id, op.Offset+index) {
			return false, state
		}
	}
	return true, state
}

var model = porcupine.Model{
	Init: func() interface{} { return empty() },
	Step: step,
	Equal: func(one, other interface{}) bool {
		return one.(*entry).hash == other.(*entry).hash && one.(*entry).offset == other.(*entry).offset
	},
	Hash: func(state interface{}) uint64 { return state.(*entry).hash },
}

// timed returns the operations of a queue with the times between which they took effect.
//
// A send without an answer has taken effect if its message was seen, then or later. Otherwise it is
// left out, as if it never had: whether it has makes no difference.
func timed(operations []operation, staleness int64) []porcupine.Operation {
	seen := map[int64]int{}
	for _, op := range operations {
		if op.Kind != "send" {
			for index, id := range op.Ids {
				seen[id] = op.Offset + index
			}
		}
	}
	var history []porcupine.Operation
	for _, op := range operations {
		called, returned := op.Called, op.Returned
		if op.Kind == "send" && !op.Ok {
			offset, found := seen[op.Ids[0]]
			if !found {
				continue
			}
			op.Offset, returned = offset, math.MaxInt64
		}
		if op.Kind == "end" {
			called -= staleness
		}
		history = append(history, porcupine.Operation{
			ClientId: op.Client, Input: op, Call: called, Return: returned,
		})
	}
	return narrowed(history)
}

// narrowed delays the call of every send to the time before which the model does not allow it: after
// the calls of all operations that must see a shorter log. This changes no verdict, but porcupine
// tries operations in the order of their calls, and would try a send that took long far too early.
func narrowed(history []porcupine.Operation) []porcupine.Operation {
	sort.SliceStable(history, func(one, other int) bool {
		first, second := history[one].Input.(operation), history[other].Input.(operation)
		if length(first) != length(second) {
			return length(first) < length(second)
		}
		return first.Kind != "send" && second.Kind == "send"
	})
	latest := int64(math.MinInt64)
	for index, op := range history {
		switch op.Input.(operation).Kind {
		case "send":
			if op.Call <= latest && latest < op.Return {
				history[index].Call = latest + 1
			}
			latest = max(latest, history[index].Call)
		case "end":
			latest = max(latest, op.Call)
		}
	}
	return history
}

// length returns how long the log is when an operation takes effect that allows one length only.
func length(op operation) int {
	if op.Kind == "send" {
		return op.Offset
	}
	return op.End
}

// stuck returns the operation that returned first of those that have no place in the longest
// linearization.
func stuck(history []porcupine.Operation, limit time.Duration) operation {
	_, info := porcupine.CheckOperationsVerbose(model, history, limit)
	var longest []int
	for _, found := range info.PartialLinearizations()[0] {
		if len(found) > len(longest) {
			longest = found
		}
	}
	placed := map[int]bool{}
	for _, index := range longest {
		placed[index] = true
	}
	first := porcupine.Operation{Return: math.MaxInt64}
	for index, op := range history {
		if !placed[index] && op.Return < first.Return {
			first = op
		}
	}
	found, _ := first.Input.(operation)
	return found
}

func read(input io.Reader) (map[int][]operation, error) {
	queues := map[int][]operation{}
	lines := json.NewDecoder(input)
	for {
		var op operation
		if err := lines.Decode(&op); errors.Is(err, io.EOF) {
			return queues, nil
		} else if err != nil {
			return nil, err
		}
		if op.Kind == "send" && len(op.Ids) != 1 {
			return nil, fmt.Errorf("a send has one id, not %v", op.Ids)
		}
		queues[op.Queue] = append(queues[op.Queue], op)
	}
}

func main() {
	staleness := flag.Duration("staleness", 0, "how old the answer may be that a queue ends here")
	limit := flag.Duration("limit", time.Minute, "time limit per queue")
	flag.Parse()
	queues, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the history cannot be read:", err)
		os.Exit(2)
	}
	var names []int
	for name := range queues {
		names = append(names, name)
	}
	sort.Ints(names)
	code := 0
	for _, name := range names {
		history := timed(queues[name], staleness.Nanoseconds())
		verdict := porcupine.CheckOperationsTimeout(model, history, *limit)
		fmt.Printf("queue %d: %s, %d operations\n", name, verdict, len(history))
		if verdict != porcupine.Ok {
			fmt.Printf("queue %d has no place for %+v\n", name, stuck(history, *limit))
			code = 1
		}
	}
	os.Exit(code)
}
