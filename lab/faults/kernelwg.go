//go:build !vm

package faults

// kernelFaults need a kernel that not every machine has: "make test-vm" boots one.
var kernelFaults []Fault
