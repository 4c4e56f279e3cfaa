// Package pads is code that the linker puts before main's.
package pads

// Before is never called.
func Before()
