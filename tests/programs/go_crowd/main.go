// Computes on 4000 goroutines until a line comes; exits with 7 if every result was right. Has large text.
package main

// /* Text of 6 MiB that nobody runs. */
// __asm__(".pushsection .text\n.globl large_text\nlarge_text:\n\t.fill 6 << 20, 1, 0xcc\n\t.popsection");
// extern void large_text(void);
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Keeps the text in the program.
var large = unsafe.Pointer(C.large_text)

//go:noinline
func work(h uint64, depth int) uint64 {
	if depth == 0 {
		return h*6364136223846793005 + 1442695040888963407
	}
	var a [16]uint64
	a[depth&15] = work(h^uint64(depth), depth-1)
	return a[depth&15] ^ h
}

func main() {
	var bad atomic.Uint64
	want := work(7, 40)
	for i := 0; i < 4000; i++ {
		go func(i int) {
			for {
				if work(7, 40) != want {
					bad.Add(1)
				}
				if i%2 == 0 {
					time.Sleep(time.Millisecond)
				} else {
					runtime.Gosched()
				}
			}
		}(i)
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	if bad.Load() != 0 {
		os.Exit(1)
	}
	os.Exit(7)
}
