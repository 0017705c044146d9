// Package soak is an accelerated week of a cluster: a lab in which faults, nodes, pods, agents and the store
// come and go at random while everything that must always hold is checked after each step. Its test has the
// build tag soak:
//
//	make soak SOAK_TIME=20m SOAK_SEED=7
//
// A seed is a history: the same seed takes the same steps, as far as the lab's reactions allow.
package soak
