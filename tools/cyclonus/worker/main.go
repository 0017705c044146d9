// Command worker is cyclonus' worker, which tries connections in a pod, with twice as many at a time: most of its time
// it waits for connections that policies forbid.
package main

import (
	"os"

	"github.com/mattfenwick/cyclonus/pkg/worker"
)

func main() {
	os.Args = append(os.Args, "--concurrency=20")
	worker.Run()
}
