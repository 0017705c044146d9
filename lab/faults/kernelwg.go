//go:build !vm

package faults

// kernelFaults need a kernel that not every machine has: tools/vm/run boots one, and builds with the tag vm.
var kernelFaults []Fault
