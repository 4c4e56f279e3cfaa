// A server and its client in one process. Reads time out every 10 ms on one connection; on the others, each page must be whole. The
// program ends with 7 for a line on stdin, and with 1 for any other error.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"
)

// The first thread has a stack of the kernel's, on which TiExec can work. It only waits, on that stack.
func init() { runtime.LockOSThread() }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Reads all, with pauses: so the server writes to a full socket for most of the time, and neither works all the time.
func slowly(from io.Reader) ([]byte, error) {
	var all bytes.Buffer
	for {
		_, err := io.CopyN(&all, from, 1<<16)
		if err == io.EOF {
			return all.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}

func waitInVain(conn net.Conn) {
	for {
		check(conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			check(fmt.Errorf("a read without data: %w", err))
		}
	}
}

func main() {
	page := bytes.Repeat([]byte("go and its bytes "), 1<<19)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			conn, err := listener.Accept()
			check(err)
			go func() {
				check(conn.SetDeadline(time.Now().Add(20 * time.Second)))
				_, err := conn.Write(page)
				check(err)
				check(conn.Close())
			}()
		}
	}()
	go func() {
		for {
			conn, err := net.DialTimeout("tcp", listener.Addr().String(), 20*time.Second)
			check(err)
			check(conn.SetDeadline(time.Now().Add(20 * time.Second)))
			got, err := slowly(conn)
			check(err)
			check(conn.Close())
			if !bytes.Equal(got, page) {
				check(errors.New("another page"))
			}
		}
	}()
	idle, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	silent, err := net.Dial("tcp", idle.Addr().String())
	check(err)
	conn, err := idle.Accept()
	check(err)
	go waitInVain(conn)
	fmt.Println("ready")
	asked := make(chan bool)
	go func() {
		os.Stdin.Read(make([]byte, 1))
		asked <- true
	}()
	<-asked
	runtime.KeepAlive(silent)
	os.Exit(7)
}
