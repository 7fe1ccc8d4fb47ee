// What Go itself takes for some rows of sched.py: `go run yardstick.go`. Each on one P and on two.
package main

import (
	"fmt"
	"runtime"
	"sort"
	"time"
)

const n = 200000

// One goroutine is made and waited for after the other, a hundred at a time.
func spawn() float64 {
	done := make(chan bool, 100)
	start := time.Now()
	for i := 0; i < n/100; i++ {
		for k := 0; k < 100; k++ {
			go func() { done <- true }()
		}
		for k := 0; k < 100; k++ {
			<-done
		}
	}
	return float64(time.Since(start).Nanoseconds()) / n
}

// Two goroutines send a number to and fro.
func hop() float64 {
	there, back := make(chan int), make(chan int)
	go func() {
		for i := range there {
			back <- i
		}
	}()
	start := time.Now()
	for i := 0; i < n; i++ {
		there <- i
		<-back
	}
	close(there)
	return float64(time.Since(start).Nanoseconds()) / n / 2
}

// How late a millisecond's sleep ends beside a goroutine that computes 200 ms at a time.
func blocker() float64 {
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
	for i := 0; i < 1000; i++ {
		start := time.Now()
		time.Sleep(time.Millisecond)
		late = append(late, (time.Since(start) - time.Millisecond).Seconds()*1e3)
	}
	stop <- true
	sort.Float64s(late)
	return late[len(late)*99/100]
}

func best(measure func() float64) float64 {
	least := measure()
	for i := 0; i < 4; i++ {
		if took := measure(); took < least {
			least = took
		}
	}
	return least
}

func main() {
	for procs := 1; procs <= 2; procs++ {
		runtime.GOMAXPROCS(procs)
		fmt.Printf("go       %d P: spawn %.0f ns, channel hop %.0f ns, p99 beside a blocker %.2f ms\n",
			procs, best(spawn), best(hop), blocker())
	}
}
