// Package drift is a fuzzer: it alters one attribute at a time of what the agent keeps in the kernel and on disk, as iproute2,
// bridge, nft, iptables and /proc offer them, and requires that the agent repairs it, that the doctor names it, or that
// the attribute is listed as free. Its tests run with "make drift".
package drift
