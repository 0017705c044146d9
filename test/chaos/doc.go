// Package chaos tests what happens to an agent itself and to its store: an API server that is slow, refuses, lies or
// goes silent, an etcd that stands still or is edited by hand, a second agent, an agent that is killed anywhere, a disk
// that takes no more, no file descriptors, a read-only /proc/sys. Each is checked with packets: those between pods that
// were there before never stop, nobody crashes, and what was missed meanwhile is made up for when it is over.
//
// What happens to the kernel's state is in lab/faults.
package chaos
