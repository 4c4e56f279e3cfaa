// Computes on 4000 goroutines until a line comes; exits with 7 if every result was right. Uses large packages, for their text.
package main

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"go/importer"
	"go/types"
	_ "net/http/pprof"
	"os"
	"runtime"
	"sync/atomic"
	"text/template"
	"time"
)

//go:noinline
func work(h uint64, depth int) uint64 {
	if depth == 0 {
		return h*6364136223846793005 + 1442695040888963407
	}
	var a [16]uint64
	a[depth&15] = work(h^uint64(depth), depth-1)
	return a[depth&15] ^ h
}

// Never called with so many arguments: keeps what it names in the program.
func large() {
	if len(os.Args) > 9 {
		t, err := template.New("x").Parse("{{.}}")
		fmt.Println(t.Execute(os.Stdout, os.Args), err, xml.Unmarshal(nil, nil))
		fmt.Println(importer.Default().Import("x"))
		fmt.Println(types.Eval(nil, nil, 0, "x"))
	}
}

func main() {
	var bad atomic.Uint64
	large()
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
