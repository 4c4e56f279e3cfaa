// Computes, says `ready` and waits for a line: `fault` writes to address 0, `end` ends with exit status 2, `recovered` faults, recovers and waits
// for the next line. Has large text.
package main

// /* Text of 6 MiB that nobody runs. */
// __asm__(".pushsection .text\n.globl large_text\nlarge_text:\n\t.fill 6 << 20, 1, 0xcc\n\t.popsection");
// extern void large_text(void);
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"unsafe"
)

// Keeps the text in the program.
var large = unsafe.Pointer(C.large_text)

// Has a stack of 64 KiB, of which it uses little: there a thread can be stopped.
func busy(depth int) (sum int) {
	var room [64]int
	room[depth&63] = depth
	if depth > 0 {
		return busy(depth-1) + room[depth&63]
	}
	return room[0]
}

func work() {
	busy(100)
	for sum := 0; ; sum += busy(0) {
	}
}

var nowhere *int

func recovered() {
	defer func() { recover() }()
	*nowhere = 1
}

func main() {
	go work()
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "fault":
			*nowhere = 1
		case "end":
			os.Exit(2)
		case "recovered":
			recovered()
		}
	}
	os.Exit(7)
}
