// What Go itself takes for sched rows: `yardstick ROW PROCS SECONDS COUNT` prints a JSON object; see contests.py.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"
)

const n = 200000

// One goroutine is made and waited for after the other, a batch at a time.
func spawn(batch int) float64 {
	done := make(chan bool, batch)
	start := time.Now()
	for i := 0; i < n/batch; i++ {
		for k := 0; k < batch; k++ {
			go func() { done <- true }()
		}
		for k := 0; k < batch; k++ {
			<-done
		}
	}
	return float64(time.Since(start).Nanoseconds()) / n
}

// Two goroutines send a number to and fro; apart: each on a thread of its own.
func hop(apart bool) float64 {
	hops := n
	if apart {
		hops = n / 20
	}
	there, back := make(chan int), make(chan int)
	go func() {
		if apart {
			runtime.LockOSThread()
		}
		for i := range there {
			back <- i
		}
	}()
	if apart {
		runtime.LockOSThread()
	}
	start := time.Now()
	for i := 0; i < hops; i++ {
		there <- i
		<-back
	}
	took := time.Since(start)
	close(there)
	return float64(took.Nanoseconds()) / float64(hops) / 2
}

// How late a millisecond's sleep ends beside a goroutine that computes 200 ms at a time.
func blocker(seconds float64) {
	stop := make(chan bool)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			}
		}
	}()
	late := []float64{}
	for end := time.Now().Add(time.Duration(seconds * 1e9)); time.Now().Before(end) || len(late) < 100; {
		start := time.Now()
		time.Sleep(time.Millisecond)
		late = append(late, (time.Since(start) - time.Millisecond).Seconds()*1e3)
	}
	stop <- true
	sort.Float64s(late)
	fmt.Printf("{\"value\": %f, \"p50_ms\": %f, \"max_ms\": %f, \"samples\": %d}\n",
		late[len(late)*99/100], late[len(late)/2], late[len(late)-1], len(late))
}

func resident() int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, _ := strconv.Atoi(strings.Fields(string(text))[1])
	return pages * os.Getpagesize()
}

func parked(count int) float64 {
	never := make(chan bool)
	before := resident()
	for i := 0; i < count; i++ {
		go func() { <-never }()
	}
	time.Sleep(time.Second)
	return float64(resident()-before) / float64(count)
}

// The median of what measure says, as often as there is time for after a first one that warms up.
func repeated(seconds float64, measure func() float64) {
	values := []float64{}
	measure()
	for end := time.Now().Add(time.Duration(seconds * 1e9)); len(values) == 0 || time.Now().Before(end); {
		values = append(values, measure())
	}
	sort.Float64s(values)
	fmt.Printf("{\"value\": %f, \"repeated\": %d}\n", values[len(values)/2], len(values))
}

func main() {
	procs, _ := strconv.Atoi(os.Args[2])
	seconds, _ := strconv.ParseFloat(os.Args[3], 64)
	count, _ := strconv.Atoi(os.Args[4])
	runtime.GOMAXPROCS(procs)
	switch os.Args[1] {
	case "spawn":
		repeated(seconds, func() float64 { return spawn(100) })
	case "spawn-one":
		repeated(seconds, func() float64 { return spawn(1) })
	case "hop":
		repeated(seconds, func() float64 { return hop(false) })
	case "hop-threads":
		repeated(seconds, func() float64 { return hop(true) })
	case "parked":
		fmt.Printf("{\"value\": %f}\n", parked(count))
	case "blocker-compute":
		blocker(seconds)
	default:
		panic("no such row")
	}
}
