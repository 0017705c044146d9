// Package causes is a fuzzer that measures the doctor: it draws causes of lost packets from a grammar of everything
// that can lose them here, injects one at a time into a healthy lab, and asks real packets whether it hurts. If it
// does, the doctor's first finding has to name the place and the object that was injected; if not, the doctor must
// call nothing broken.
//
// A cause is the commands that inject it and those that take it back. It is drawn from the run's seed and its own
// number alone, so that a run and each of its causes can be repeated:
//
//	make causes CAUSES_SEED=7 CAUSES_COUNT=1000
//	make causes CAUSES_SEED=7 CAUSES_ONLY=13,200-210
//	make causes CAUSES_KIND='xfrm|fdb'
package causes
