// Package guest draws hosts as they are before Twill comes: their networks, addresses, routes, parameters, firewalls,
// containers and devices, many of which are in Twill's way. Then Twill lives on one: it starts, has pods, is killed, starts
// again, and is removed. What is asked for is the host's own life, by packets and byte for byte: Twill is a guest.
//
// A run ends in one of two ways that are allowed: the host is as it was and the pods work, or the host is as it was and
// the agent has said, for a reason of a closed list (reasons), why pods cannot work there.
package guest
