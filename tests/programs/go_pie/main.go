// Checks what the Go runtime knows of where it lies: function tables, stacks of panics, the garbage collector's maps of its data;
// with megabytes of text from a file that the test writes (text_amd64.s: big ends in a return of 42).
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
)

func big() int

var table = map[string]func() int{"one": func() int { return 1 }, "big": big}
var kept = make([]*[1000]int, 0)

//go:noinline
func descend(depth int) {
	if depth == 0 {
		var none map[string]int
		none["panics"] = 1
	}
	descend(depth - 1)
}

func caught() (stack string) {
	defer func() {
		if recover() != nil {
			buf := make([]byte, 1<<16)
			stack = string(buf[:runtime.Stack(buf, false)])
		}
	}()
	descend(10)
	return
}

func main() {
	done := make(chan int)
	for i := 0; i < 50; i++ {
		go func() {
			sum := 0
			for k := 0; k < 100; k++ {
				sum += len(make([]int, k*100)) + table["one"]()
			}
			done <- sum
		}()
	}
	total := 0
	for i := 0; i < 50; i++ {
		total += <-done
		kept = append(kept, new([1000]int))
		runtime.GC()
	}
	_, file, _, _ := runtime.Caller(0)
	fmt.Println(total, len(kept), table["big"](), strings.Count(caught(), "main.descend("), strings.HasSuffix(file, "main.go"))
	fmt.Println("pid", os.Getpid())
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(7)
}
