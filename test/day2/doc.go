// Package day2 changes clusters that work, and counts what their pods lose meanwhile: 200 pings a second from each pod to each
// other one, and a TCP connection between them that carries 4 kB fifty times a second.
//
// Each script is a kind of change, there and back, with the most that may be lost. A seed draws the order in which the agents are
// restarted, and the time between. A table of what was lost is printed at the end, beside what the agents of the commit 80cbeba
// lost of 200 datagrams a second, as comments behind the command losses say it:
//
//	make day2 DAY2_SEED=7
//	make day2 DAY2='backends|kube'
//	make day2 DAY2=older TWILL_PREVIOUS=80cbeba
package day2
