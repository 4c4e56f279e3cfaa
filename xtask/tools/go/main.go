// Panics, or profiles itself, at a line on stdin. There are 2.5 MiB of code before and after these functions (cases.sh, go_pad).
package main

import (
	"bufio"
	"crash/pads"
	"fmt"
	"os"
	"runtime/pprof"
	"syscall"
	"time"
)

func after()

//go:noinline
func deep(left int) int {
	if left == 0 {
		panic("the end")
	}
	return deep(left-1) + 1
}

//go:noinline
func spin(sum uint32) uint32 {
	for i := uint32(0); i < 10000000; i++ {
		sum = sum*1664525 + i
	}
	return sum
}

func profile() {
	file, err := os.Create("cpu.pprof")
	if err != nil || pprof.StartCPUProfile(file) != nil {
		os.Exit(3)
	}
	sum := uint32(1)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		sum = spin(sum)
	}
	pprof.StopCPUProfile()
	file.Close()
	fmt.Fprintln(os.Stderr, sum)
	fmt.Println("done")
}

func main() {
	if len(os.Args) > 9 {
		pads.Before()
		after()
	}
	// Go waits for such a file as a server waits for its clients: the first thread sleeps on its own stack.
	syscall.SetNonblock(0, true)
	lines := bufio.NewScanner(os.NewFile(0, "stdin"))
	fmt.Println("ready")
	for lines.Scan() {
		switch lines.Text() {
		case "panic":
			fmt.Fprintln(os.Stderr, deep(2))
		case "profile":
			profile()
		}
	}
}
