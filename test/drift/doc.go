// Package drift is a fuzzer: it alters one attribute at a time of what the agent keeps in the kernel and on disk, and
// requires that the agent repairs it, that the doctor's first finding is about it, or that Documentation/drift.md has
// the attribute as free.
//
// What it alters comes from the kernel's lists: every message of rtnetlink about an object of ours, with another value
// of an attribute or a field, every parameter in /proc/sys of our devices, and what ip, bridge, tc, nft and iptables
// can do to the objects that they list. What happened it sees by raw netlink, by pings between pods, and in the agent's
// log.
//
//	make drift DRIFT_SEED=7 DRIFT_TIME=10m
package drift
