// Command pod is everything that the containers of a test cluster run: a pause process, a server that says who
// asked, and a prober.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = "usage: pod pause | pod serve | pod probe TARGET… | pod ping ADDRESS COUNT | pod watch HOST:PORT | pod connects HOST:PORT SECONDS"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return pause() // as the sandbox image
	}
	switch args[0] {
	case "pause":
		return pause()
	case "serve":
		return serve()
	case "probe":
		return probeAll(args[1:])
	case "ping":
		return ping(args[1:])
	case "watch":
		return watch(args[1:])
	case "connects":
		return connects(args[1:])
	}
	return fmt.Errorf("%q is unknown; %s", args[0], usage)
}

// pause waits for its end; as PID 1 of a pod it also reaps what others leave.
func pause() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}
