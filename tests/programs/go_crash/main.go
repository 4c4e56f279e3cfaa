// Computes, says `ready` and waits for a line: `fault` writes to address 0, `end` ends with exit status 2, `recovered` faults, recovers and waits
// for the next line. Uses large packages, for their text.
package main

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"go/importer"
	"go/types"
	_ "net/http/pprof"
	"os"
	"text/template"
)

// Never called with so many arguments: keeps what it names in the program.
func large() {
	if len(os.Args) > 9 {
		t, err := template.New("x").Parse("{{.}}")
		fmt.Println(t.Execute(os.Stdout, os.Args), err, xml.Unmarshal(nil, nil))
		fmt.Println(importer.Default().Import("x"))
		fmt.Println(types.Eval(nil, nil, 0, "x"))
	}
}

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
	large()
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
