// go build: a program that uses cgo has a dynamic linker, and so libtiexec.
package main

// #cgo pkg-config: tiexec
// #include <tiexec.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func main() {
	settings := C.CString("edges=aggressive")
	var options C.struct_tiexec_options
	options.size = C.size_t(unsafe.Sizeof(options))
	options.settings = settings
	var result C.struct_tiexec_result
	result.size = C.size_t(unsafe.Sizeof(result))

	// The program goes on in any case.
	if C.tiexec_self(&options, &result) != 0 {
		fmt.Fprintln(os.Stderr, "text stays on base pages:", C.GoString(&result.reason[0]), C.GoString(&result.detail[0]))
	}
	fmt.Printf("%d of %d KiB of text are on huge pages\n", result.huge_bytes>>10, result.text_bytes>>10)
}
