package host

// Find names the running process with this pid for good.
func Find(pid int) (Process, error) {
	started, _, err := stat(pid)
	return Process{PID: pid, Started: started}, err
}
